"""A description of whatever kind, read back from plain data."""

from __future__ import annotations

from typing import Any

from trivium.errors import SpecError, did_you_mean
from trivium.spec.model import ModelSpec
from trivium.spec.recurrent import NGramSpec, RNNSpec

AnySpec = ModelSpec | RNNSpec | NGramSpec

_KINDS: dict[str, type[ModelSpec] | type[RNNSpec] | type[NGramSpec]] = {
    "transformer": ModelSpec,
    "rnn": RNNSpec,
    "n-gram": NGramSpec,
}


def spec_from_dict(data: dict[str, Any]) -> AnySpec:
    """The inverse of every description's `to_dict`; its `kind` says which one it is.

    Without a kind it is a Transformer, as all were before there were others. Raises SpecError for
    an unknown kind, or with the field that does not fit.
    """
    kind = data.get("kind", "transformer")
    if kind not in _KINDS:
        known = ", ".join(f'"{name}"' for name in _KINDS)
        raise SpecError(
            f"model description: kind is {kind!r}, which is none of {known}."
            f"{did_you_mean(str(kind), _KINDS)}"
        )
    return _KINDS[kind].from_dict(data)
