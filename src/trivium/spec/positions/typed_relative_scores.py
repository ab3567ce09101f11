"""Relative scores that also know which tokens are of one sentence: XLNet's."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.positions.relative_scores import RelativeScores


class TypedRelativeScores(RelativeScores):
    """Relative scores, and whether two tokens have the same type (Yang et al. 2019, section 2.5).

    Types are compared, never embedded: sentences A and B, and a third for the token that stands
    for the text.
    """

    num_token_types: ClassVar[int] = 3
    kind: Literal["typed-relative-scores"] = "typed-relative-scores"  # type: ignore[assignment]
