"""Named sizes of the literature, each with its paper, and small sizes of every family.

Sizes called `-tiny` (2 layers, width 128) and `-mini` (4 layers, width 256) are our own, for trying
and testing, unless the family published such names (BERT). Every preset starts as its paper says.

>>> presets["llama-7b"].d_model
4096
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trivium.errors import SpecError, did_you_mean
from trivium.presets.decoders import DECODERS
from trivium.presets.encoder_decoders import ENCODER_DECODERS
from trivium.presets.encoders import ENCODERS
from trivium.presets.preset import Preset
from trivium.presets.sequence_models import SEQUENCE_MODELS
from trivium.spec import AnySpec

__all__ = ["Preset", "Presets", "catalogue", "find", "presets"]

catalogue: dict[str, Preset] = {**ENCODERS, **DECODERS, **ENCODER_DECODERS, **SEQUENCE_MODELS}
"""Name -> Preset, all of them."""


def find(name: str) -> Preset:
    """The preset called `name`. Raises SpecError for an unknown name."""
    if name not in catalogue:
        raise SpecError(
            f'there is no preset "{name}".{did_you_mean(name, catalogue)} '
            "`trivium presets` lists them."
        )
    return catalogue[name]


class Presets(Mapping[str, AnySpec]):
    """Name -> spec; an unknown name is an error that suggests the nearest."""

    def __getitem__(self, name: str) -> AnySpec:
        return find(name).spec

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue)

    def __len__(self) -> int:
        return len(catalogue)

    def __contains__(self, name: object) -> bool:
        return name in catalogue


presets = Presets()
