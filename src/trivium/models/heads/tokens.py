"""Heads that make one prediction per token.

Shape letters: B batch, T positions, D d_model, L labels.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from trivium.models.heads import Dense, Head, HeadInput, build_dense
from trivium.nn.activations import Activation
from trivium.nn.part import Count, PartModule


class TaggerHead(Head):
    """Token classifier: `num_labels` logits for every position."""

    kind: Literal["tagger"] = "tagger"
    num_labels: Count
    dense: Dense | None = None

    def build(self, inputs: HeadInput) -> TokenClassifier:
        """Return the module of the head (see `Head.build`)."""
        return TokenClassifier(self.dense, inputs, self.num_labels)


class SpanHead(Head):
    """Head for extractive question answering: logits of answer start and end per position."""

    global_tokens: ClassVar[Literal["first", "question"] | None] = "question"
    kind: Literal["span"] = "span"
    dense: Dense | None = None

    def build(self, inputs: HeadInput) -> TokenClassifier:
        """Return the module of the head (see `Head.build`)."""
        return TokenClassifier(self.dense, inputs, 2)


class ReplacedTokenHead(Head):
    """Head of ELECTRA's discriminator: one logit per position, whether its token was replaced."""

    needs_bidirectional: ClassVar[bool] = True
    kind: Literal["replaced-token"] = "replaced-token"
    activation: Activation = "gelu"

    def build(self, inputs: HeadInput) -> TokenClassifier:
        """Return the module of the head (see `Head.build`)."""
        return TokenClassifier(Dense(activation=self.activation), inputs, 1)


class TokenClassifier(PartModule):
    """Module of all heads in this file: optional dense layer, dropout, projection to logits."""

    def __init__(self, dense: Dense | None, inputs: HeadInput, outputs: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(inputs.dropout)
        self.dense = build_dense(dense, inputs, inputs.d_model)
        self.classifier = nn.Linear(inputs.d_model, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return L logits per position, [B, T, L], for hidden states [B, T, D]."""
        return self.classifier(self.dropout(self.dense(hidden)))
