"""The named sizes of the literature, each with its paper, and two small sizes of every family.

`-tiny` (2 layers of width 128) and `-mini` (4 of 256) are for trying and testing; where a family
published sizes of these names (BERT), those are meant. One file a group of families.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trivium.errors import SpecError, did_you_mean
from trivium.presets.classic import CLASSIC
from trivium.presets.decoders import DECODERS
from trivium.presets.encoder_decoders import ENCODER_DECODERS
from trivium.presets.encoders import ENCODERS
from trivium.presets.preset import Preset, Training
from trivium.spec import AnySpec

__all__ = ["Preset", "Presets", "Training", "catalogue", "find", "presets"]

catalogue: dict[str, Preset] = {**ENCODERS, **DECODERS, **ENCODER_DECODERS, **CLASSIC}
"""Name -> Preset, the whole of it."""


class Presets(Mapping[str, AnySpec]):
    """Name -> description; an unknown name is an error that suggests the nearest."""

    def __getitem__(self, name: str) -> AnySpec:
        return find(name).spec

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue)

    def __len__(self) -> int:
        return len(catalogue)

    def __contains__(self, name: object) -> bool:
        return name in catalogue


def find(name: str) -> Preset:
    """The preset called `name`. Raises SpecError for an unknown name."""
    if name not in catalogue:
        raise SpecError(
            f'there is no preset "{name}".{did_you_mean(name, catalogue)} '
            "`trivium presets` lists them."
        )
    return catalogue[name]


presets = Presets()
