"""The Hugging Face model families that can be imported and exported, one module per family.

To add a family whose mixers, norms and heads all exist in Trivium, add a module that defines a
`Family` named after the module in capitals. Start from the most similar family, as `mistral.py`
does from `llama.py`. The parity tests find its classes automatically, but need the sizes of a small
model of the family in `tests/interop/hf_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from trivium.choice import import_submodules
from trivium.interop.family import Family


def _families() -> Iterator[Family]:
    """Yield the `Family` of every module in this package, sorted by module name."""
    for module in import_submodules(__name__, __path__):
        name = module.__name__.rpartition(".")[2].upper()
        family = getattr(module, name, None)
        if not isinstance(family, Family):
            raise ImportError(f"{module.__name__} defines no Family named {name}.")
        yield family


FAMILIES: dict[str, Family] = {
    family.model_type: family for family in sorted(_families(), key=lambda each: each.is_variant)
}
"""`model_type` -> family. A spec is exported as the first family that can express it."""
