"""Heads that read every token.

Shape letters: B batch, T positions, D d_model, L labels.
"""

from __future__ import annotations

from torch import Tensor, nn

from trivium import spec
from trivium.models.dense import build_dense
from trivium.nn.part_module import PartModule


class TokenClassifier(PartModule):
    """Logits of every position: labels of tokens, start and end of spans, replaced or not."""

    def __init__(self, dense: spec.Dense | None, inputs: spec.HeadInput, outputs: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(inputs.dropout)
        self.dense = build_dense(dense, inputs, inputs.d_model)
        self.classifier = nn.Linear(inputs.d_model, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, T, L]."""
        return self.classifier(self.dropout(self.dense(hidden)))


class Tagger(TokenClassifier, of=spec.TaggerHead):
    """Logits of a tagger's labels."""

    def __init__(self, head: spec.TaggerHead, inputs: spec.HeadInput) -> None:
        super().__init__(head.dense, inputs, head.num_labels)


class SpanClassifier(TokenClassifier, of=spec.SpanHead):
    """Two logits: does the answer begin here, does it end here."""

    def __init__(self, head: spec.SpanHead, inputs: spec.HeadInput) -> None:
        super().__init__(head.dense, inputs, 2)


class ReplacedTokenClassifier(TokenClassifier, of=spec.ReplacedTokenHead):
    """One logit: was the token replaced."""

    def __init__(self, head: spec.ReplacedTokenHead, inputs: spec.HeadInput) -> None:
        super().__init__(spec.Dense(activation=head.activation), inputs, 1)
