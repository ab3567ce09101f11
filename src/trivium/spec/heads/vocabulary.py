"""Heads over the vocabulary."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.heads import Dense, Head
from trivium.spec.part import Positive


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

    Without a dense layer the projection reads the hidden states.
    """

    reads_both_sides: ClassVar[bool] = True
    kind: Literal["mlm"] = "mlm"
    dense: Dense | None = None
    tied: bool = True
    bias: bool = True
