"""Presets: published model sizes, each with its paper, and small sizes of every family.

The sizes `-tiny` (2 layers, width 128), `-mini` (4 layers, width 256) and `-midi` are our own, for
experiments and short runs, unless a paper uses these names. Specs have the initialization of their
papers, with the exceptions that their modules name. Decoders whose papers do not give one have the
initialization of GPT-2. Training of our own sizes changes some initializations by default
(`train/defaults.py`). The vocabulary of a trained model is that of its tokenizer, which is at most
as large as the preset's unless `tokenizer.vocab_size` is set.

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
    """A dict that raises SpecError for an unknown name and suggests the nearest name."""

    def __missing__(self, name: str) -> Never:
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
    """Return the suggestion of `did_you_mean_size` among the names of presets and `others`."""
    return did_you_mean_size(name, [*presets, *others])


def is_own_size(name: str) -> bool:
    """Return whether a preset's size is our own, not from a paper.

    >>> [is_own_size(name) for name in ("llama-mini", "bert-mini", "bert-base")]
    [True, False, False]
    """
    size = name.removesuffix("-generator")
    return size.endswith(("-tiny", "-mini", "-midi")) and size not in _PUBLISHED
