"""The families of Hugging Face that are read and written, one module each.

To add one of known parts: a module whose `Family` is its name in capitals (start from that of its
nearest kin, as `mistral.py` does from `llama.py`). The tests of parity find its classes by
themselves; they need its small sizes in `tests/interop/hf_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from trivium.interop.family import Family


def _families() -> Iterator[Family]:
    """The family of every module here, in the order of their names."""
    for name in sorted(module.name for module in iter_modules(__path__)):
        module = import_module(f"{__name__}.{name}")
        family = getattr(module, name.upper(), None)
        if not isinstance(family, Family):
            raise ImportError(f"{module.__name__} defines no Family named {name.upper()}.")
        yield family


_BY_TYPE = {family.model_type: family for family in _families()}


def _depth(family: Family) -> int:
    """0 for an original, 1 for its variant, 2 for a variant of that."""
    return 1 + _depth(_BY_TYPE[family.variant_of]) if family.variant_of else 0


FAMILIES: dict[str, Family] = {
    family.model_type: family for family in sorted(_BY_TYPE.values(), key=_depth)
}
"""`model_type` -> family. A spec that several can express is exported as the first."""
