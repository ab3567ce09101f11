"""The module of every part: `class AttentionMixer(MixerModule, of=spec.Attention)` joins them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from trivium import spec
from trivium.errors import SpecError

_CLASSES: dict[type[spec.Part], type[Any]] = {}


class OfPart:
    """What a part becomes; a subclass says `of` which class of parts it is."""

    def __init_subclass__(cls, of: type[spec.Part] | None = None) -> None:
        super().__init_subclass__()
        if of is not None:
            _CLASSES[of] = cls


class PartModule(OfPart, nn.Module):
    """A module that is made of a part."""

    parallel: ClassVar[Mapping[str, str]] = {}
    """Linear layers, and weights of its own, that tensor parallelism divides by outputs ("column")
    or by inputs ("row"). What a "row" matrix makes is added to the residual stream: starts of
    weights make those smaller, or zero."""

    vectors: ClassVar[tuple[str, ...]] = ()
    """Weights of its own that are no matrices, whatever their shape: optimizers do not let them
    decay, nor make their steps orthogonal."""

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set or draw the weights whose start is its own, after all others were drawn."""


def module_class(part: spec.Part) -> Any:
    """The class of a part's module. Raises SpecError where none is defined."""
    if type(part) not in _CLASSES:
        raise SpecError(f"no module is defined for {type(part).__name__}: see `PartModule`.")
    return _CLASSES[type(part)]
