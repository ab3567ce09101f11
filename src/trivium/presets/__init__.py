"""Presets: published model sizes, each with its paper, and small sizes of every family.

The sizes `-tiny` (2 layers, width 128), `-mini` (4 layers, width 256) and `-midi` are our own, for
experiments and short runs, unless a paper uses these names. Specs have the initialization of their
papers; the modules name the exceptions. Decoders whose papers give no initialization have that of
GPT-2. Training changes some initializations of our own sizes by default (`train/defaults.py`). A
trained model has the vocabulary of its tokenizer, which is at most as large as that of the preset
unless `tokenizer.vocab_size` is set.

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
    """A dict that raises SpecError for an unknown name and suggests the most similar name."""

    def __missing__(self, name: str) -> Never:
        """Raise SpecError with a suggestion."""
        raise SpecError(
            f'there is no preset "{name}".{did_you_mean_preset(name)} `trivium presets` lists them.'
        )


catalogue: dict[str, Preset] = _Named()
"""All presets by name: the `PRESETS` of every module in this package."""
for _module in import_members(__name__, __path__):
    catalogue |= getattr(_module, "PRESETS", {})

presets: dict[str, Spec] = _Named({name: preset.spec for name, preset in catalogue.items()})
"""The specs of all presets by name."""


def did_you_mean_preset(name: str, others: Iterable[str] = ()) -> str:
    """Return a suggestion of a similar name among presets and `others`, for an error message."""
    return did_you_mean_size(name, [*presets, *others])


def is_own_size(name: str) -> bool:
    """Return whether the size of a preset is our own instead of published.

    >>> [is_own_size(name) for name in ("llama-mini", "bert-mini", "bert-base")]
    [True, False, False]
    """
    size = name.removesuffix("-generator")
    return size.endswith(("-tiny", "-mini", "-midi")) and size not in _PUBLISHED
