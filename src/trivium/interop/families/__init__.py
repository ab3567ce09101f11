"""The families of Hugging Face that are read and written, one module each.

To add one of known parts: a module whose `Family` is its name in capitals (start from that of its
nearest kin, as `mistral.py` does from `llama.py`). The tests of parity find its classes by
themselves; they need its small sizes in `tests/interop/hf_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from trivium.choice import import_members
from trivium.interop.family import Family


def _families() -> Iterator[Family]:
    """The family of every module here, in the order of their names."""
    for module in import_members(__name__, __path__):
        name = module.__name__.rpartition(".")[2].upper()
        family = getattr(module, name, None)
        if not isinstance(family, Family):
            raise ImportError(f"{module.__name__} defines no Family named {name}.")
        yield family


FAMILIES: dict[str, Family] = {
    family.model_type: family for family in sorted(_families(), key=lambda each: each.is_variant)
}
"""`model_type` -> family. A spec that several can express is exported as the first."""
