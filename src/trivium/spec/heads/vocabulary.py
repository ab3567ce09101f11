"""Heads over the vocabulary."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import SerializeAsAny

from trivium.spec.heads import Dense, Head
from trivium.spec.part import Positive
from trivium.spec.positions import AbsolutePositions


class LMHead(Head):
    """Logits of the next token, through the embedding's matrix if tied (T5: times `scale`).

    With `soft_cap` c a logit z is c tanh(z / c) (Gemma 2).
    """

    kind: Literal["lm"] = "lm"
    tied: bool
    bias: bool = False
    scale: Positive = 1.0
    soft_cap: Positive | None = None


class MLMHead(Head):
    """Logits of masked tokens: dense, activation, norm, projection with a bias (BERT).

    Without a dense layer the projection reads the hidden states. With `late_positions` these are
    of an enhanced mask decoder (He et al. 2020, section 3.2): the last layer runs twice, its
    queries are its input and vectors of absolute positions, then what the first run gave; its keys
    and values are its input. In the paper the first queries are positions alone; as here, it is in
    the released code.
    """

    reads_both_sides: ClassVar[bool] = True
    kind: Literal["mlm"] = "mlm"
    dense: Dense | None = None
    tied: bool = True
    bias: bool = True
    late_positions: SerializeAsAny[AbsolutePositions] | None = None
