"""Heads that return logits over the vocabulary: LM and MLM heads.

Shape letters: D d_model, E width of token embeddings, V vocabulary.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn

from trivium.models.heads import Dense, Head, HeadInput, build_dense
from trivium.nn.part import PartModule, Positive
from trivium.nn.positions import AbsolutePositions


class LMHead(Head):
    """Language model head: logits of the next token.

    `tied` uses the token embeddings as output matrix. The projection to the vocabulary reads the
    output of the layer `dense` or, without `dense`, the hidden states (ModernBERT's decoder has
    one). Hidden states are multiplied by `scale` (T5). With `soft_cap` c, a logit z becomes
    c tanh(z / c) (Gemma 2).
    """

    kind: Literal["lm"] = "lm"
    dense: Dense | None = None
    tied: bool
    bias: bool = False
    scale: Positive = 1.0
    soft_cap: Positive | None = None

    def build(self, inputs: HeadInput) -> CausalHead:
        """Return the module of the head (see `Head.build`)."""
        return CausalHead(self, inputs)


class MLMHead(Head):
    """Masked language model head: logits of masked tokens (BERT).

    The projection to the vocabulary reads the output of the layer `dense` or, without `dense`, the
    hidden states. With `mask_decoder_positions`, the last layer of the encoder serves as DeBERTa's
    enhanced mask decoder (He et al. 2020, section 3.2): it runs twice. In both runs, keys and
    values are computed from the layer's input. Queries are computed from the sum of this input and
    absolute positions in the first run, and from the output of the first run in the second. In the
    paper, the first queries are computed from positions only. The released code adds the input, as
    here.
    """

    needs_bidirectional: ClassVar[bool] = True
    kind: Literal["mlm"] = "mlm"
    dense: Dense | None = None
    tied: bool = True
    bias: bool = True
    mask_decoder_positions: SerializeAsAny[AbsolutePositions] | None = None

    def build(self, inputs: HeadInput) -> MaskedHead:
        """Return the module of the head (see `Head.build`)."""
        return MaskedHead(self, inputs)


class VocabularyHead(PartModule):
    """Base class of heads over the vocabulary: logits z = f(h) E^T + c for hidden states h.

    The output matrix E is the token embedding matrix if tied, otherwise a separate `weight`. c is
    the `bias`. `forward` returns f(h); `LanguageModule.logits` computes z. With a `soft_cap`, z
    becomes soft_cap * tanh(z / soft_cap). In a model packed for inference, the
    module `packed` computes f(h) E^T + c from f(h).
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    soft_cap: float | None = None

    def __init__(self, inputs: HeadInput, *, tied: bool, bias: bool) -> None:
        super().__init__()
        shape = inputs.vocab_size, inputs.d_embedding
        self.weight = None if tied else nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(inputs.vocab_size)) if bias else None
        self.packed: nn.Module | None = None
        self.mask_decoder_positions: nn.Module | None = None


class CausalHead(VocabularyHead):
    """Module of `LMHead`: f(h) = scale * g(h), where g is the layer `dense` if there is one.

    With `inputs.projects`, f(h) = scale * P g(h) with a matrix P.
    """

    def __init__(self, head: LMHead, inputs: HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.scale, self.soft_cap, self.projection = head.scale, head.soft_cap, None
        self.dense = None
        if head.dense is not None:
            self.dense = build_dense(head.dense, inputs, inputs.d_model)
        if inputs.projects:
            self.projection = nn.Linear(inputs.d_model, inputs.d_embedding, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the input f(h) [..., E] of the output matrix for hidden states h [..., D]."""
        if self.dense is not None:
            hidden = self.dense(hidden)
        if self.projection is not None:
            hidden = self.projection(hidden)
        return hidden if self.scale == 1.0 else hidden * self.scale


class MaskedHead(VocabularyHead):
    """Module of `MLMHead`: f(h) = norm(act(h W + b)) (Devlin et al. 2018, as released).

    Without `dense`, f(h) is h, or a projection of h if token embeddings are not as wide as h.
    """

    def __init__(self, head: MLMHead, inputs: HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.dense = build_dense(head.dense, inputs, inputs.d_embedding)
        if (late := head.mask_decoder_positions) is not None:
            self.mask_decoder_positions = late.build(inputs.d_model)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the input f(h) [..., E] of the output matrix for hidden states h [..., D]."""
        return self.dense(hidden)
