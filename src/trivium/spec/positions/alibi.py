"""ALiBi: scores fall with distance."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.positions import Positions


class ALiBi(Positions):
    """Scores lowered in proportion to distance, each head with its slope (Press et al. 2022)."""

    has_scores: ClassVar[bool] = True
    divides: ClassVar[bool] = True
    kind: Literal["alibi"] = "alibi"
