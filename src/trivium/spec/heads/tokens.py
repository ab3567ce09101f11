"""Heads that read every token."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.feed_forwards.feed_forward import Activation
from trivium.spec.heads import Dense, Head
from trivium.spec.part import Count


class TaggerHead(Head):
    """`num_labels` logits for every position."""

    kind: Literal["tagger"] = "tagger"
    num_labels: Count
    dense: Dense | None = None


class SpanHead(Head):
    """Two logits for every position: does the answer begin here, does it end here."""

    global_tokens: ClassVar[Literal["first", "question"] | None] = "question"
    kind: Literal["span"] = "span"
    dense: Dense | None = None


class ReplacedTokenHead(Head):
    """One logit for every position: is this token another than the text had (ELECTRA)."""

    reads_both_sides: ClassVar[bool] = True
    kind: Literal["replaced-token"] = "replaced-token"
    activation: Activation = "gelu"
