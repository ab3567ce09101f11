"""Presets: published model sizes, each with its paper, and small sizes of every family.

The sizes `-tiny` (2 layers, width 128), `-mini` (4 layers, width 256) and `-midi` are our own, for
experiments and short runs, unless a paper uses these names. Specs have the initialization of their
papers, except where a module says otherwise. Decoders whose papers give no initialization have that
of GPT-2. By default, training changes the initialization of some of our own sizes
(`train/defaults.py`). A trained model has the vocabulary size of its tokenizer. It is at most that
of the preset unless `tokenizer.vocab_size` is set.

>>> presets["llama-7b"].d_model
4096
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Never, TypeVar

from trivium.choice import import_submodules
from trivium.errors import SpecError, did_you_mean_model
from trivium.models.base_model import Spec
from trivium.presets.preset import Preset

__all__ = ["Preset", "auto_presets", "catalogue", "did_you_mean_preset", "is_own_size", "presets"]

# Turc et al. 2019; Microsoft's names.
_PUBLISHED = ("bert-tiny", "bert-mini", "phi-3-mini", "phi-4-mini")

T = TypeVar("T")


class _PresetDict(dict[str, T]):
    """A dict by preset name. An unknown name raises SpecError, which suggests a similar name."""

    def __missing__(self, name: str) -> Never:
        """Raise SpecError for an unknown preset name, with a suggestion of a similar name."""
        raise SpecError(
            f'there is no preset "{name}".{did_you_mean_preset(name)} `trivium presets` lists them.'
        )


catalogue: dict[str, Preset] = _PresetDict()
"""All presets by name: the `PRESETS` of every module in this package."""
for _module in import_submodules(__name__, __path__):
    catalogue |= getattr(_module, "PRESETS", {})

presets: dict[str, Spec] = _PresetDict({name: preset.spec for name, preset in catalogue.items()})
"""The specs of all presets by name."""

auto_presets = {
    "llama-auto": "llama-mini",
    "gpt2-auto": "gpt2-mini",
    "bert-auto": "bert-mini",
    "modernbert-auto": "modernbert-mini",
    "t5-auto": "t5-mini",
}
"""The presets whose size is chosen for a budget (`plan/model_size.py`), and the preset they resize.

They are in no other dict of presets, because their size depends on the machine and the budget.
"""


def did_you_mean_preset(name: str, others: Iterable[str] = ()) -> str:
    """Return a suggestion for a misspelt preset name, to be appended to an error message.

    The suggested name is a preset or one of `others`. Returns "" if no name is similar.
    """
    return did_you_mean_model(name, [*presets, *others])


def is_own_size(name: str) -> bool:
    """Return whether the size of a preset was chosen for Trivium and is not from a paper.

    >>> [is_own_size(name) for name in ("llama-mini", "bert-mini", "bert-base")]
    [True, False, False]
    """
    size = name.removesuffix("-generator")
    return size.endswith(("-tiny", "-mini", "-midi")) and size not in _PUBLISHED
