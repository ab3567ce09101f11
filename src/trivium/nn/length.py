"""How long an input may be."""

from __future__ import annotations

from trivium.errors import SpecError


def check_length(length: int, max_length: int | None) -> None:
    """Raise SpecError for an input longer than the model reads."""
    if max_length is not None and length > max_length:
        raise SpecError(
            f"the input has {length} tokens, but this model reads at most {max_length}: "
            "shorten the text or cut it into pieces."
        )
