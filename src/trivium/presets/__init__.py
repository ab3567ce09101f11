"""Named sizes of the literature, each with its paper, and small sizes of every family.

Sizes called `-tiny` (2 layers, width 128), `-mini` (4 layers, width 256) and `-midi` are our own,
for trying and short runs, unless a paper has such names. Every spec starts as its paper says, a
decoder whose paper does not say as GPT-2; runs of sizes of our own change that
(`train/defaults.py`). A trained model has the vocabulary of its tokenizer; that of the preset is
the most it can be unless `tokenizer.vocab_size` is set.

>>> presets["llama-7b"].d_model
4096
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Never, TypeVar

from trivium.choice import import_members
from trivium.errors import SpecError, did_you_mean_size
from trivium.models.base_model import Spec
from trivium.presets.preset import Preset

__all__ = ["Preset", "catalogue", "did_you_mean_preset", "is_own_size", "presets"]

_PUBLISHED = ("bert-tiny", "bert-mini")  # Turc et al. 2019

T = TypeVar("T")


class _Named(dict[str, T]):
    """A dict in which an unknown name is an error that suggests the nearest."""

    def __missing__(self, name: str) -> Never:
        raise SpecError(
            f'there is no preset "{name}".{did_you_mean_preset(name)} `trivium presets` lists them.'
        )


catalogue: dict[str, Preset] = _Named()
"""Name -> Preset: the `PRESETS` of every module here."""
for _module in import_members(__name__, __path__):
    catalogue |= getattr(_module, "PRESETS", {})

presets: dict[str, Spec] = _Named({name: preset.spec for name, preset in catalogue.items()})
"""Name -> spec."""


def did_you_mean_preset(name: str, others: Iterable[str] = ()) -> str:
    """`did_you_mean_size` among presets and `others`."""
    return did_you_mean_size(name, [*presets, *others])


def is_own_size(name: str) -> bool:
    """Whether no paper has this size of its family.

    >>> [is_own_size(name) for name in ("llama-mini", "bert-mini", "bert-base")]
    [True, False, False]
    """
    size = name.removesuffix("-generator")
    return size.endswith(("-tiny", "-mini", "-midi")) and size not in _PUBLISHED
