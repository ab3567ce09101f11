"""The feed-forward n-gram language model (Bengio et al. 2003).

Shape letters: B batch, T positions, M selected positions, m width of token embeddings, n order,
W width of hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.models.base_model import (
    LanguageModule,
    Spec,
    build_heads,
    projecting_head_config,
    refuse,
)
from trivium.models.heads import HeadInput
from trivium.models.heads.vocabulary import LMHead
from trivium.models.rnn import RecurrentInitializer
from trivium.nn.part import Count, DropoutRate, empty_embedding
from trivium.nn.sequence_info import gather
from trivium.nn.state import Cache, append_tokens, build_token_cache


class NGramSpec(Spec):
    """The spec of a feed-forward n-gram model (Bengio et al. 2003): n-1 tokens predict the next.

        y = b + W x + U tanh(d + H x),   x = (C(w_t-1), ..., C(w_t-n+1))

    `order` is n, `d_model` is the width m of the token embeddings C, and `d_hidden` is the width h
    of the tanh layer. `connections` "direct" adds the connections W from token embeddings to the
    vocabulary; "hidden" omits them. A tied LM head projects to width m and uses C as the vocabulary
    matrix. Positions before the text share one trained vector (the paper pads with a token).
    """

    supports_task_heads: ClassVar[bool] = False  # it sees a few tokens of a text
    kind: Literal["n-gram"] = "n-gram"
    order: Annotated[int, Field(ge=2)]
    d_hidden: Count
    connections: Literal["hidden", "direct"] = "hidden"
    dropout: DropoutRate = 0.0

    def check(self) -> None:
        """Raise SpecError for any head except an LM head."""
        super().check()
        for head in self.heads:
            if not isinstance(head, LMHead):
                raise SpecError(f"an n-gram model has no {head.kind} head: it has an lm head only.")

    @property
    def d_context(self) -> int:
        """The width of the concatenated embeddings of a context of n-1 tokens, (n-1) m."""
        return (self.order - 1) * self.d_model

    @property
    def d_head_input(self) -> int:
        """The width of the hidden states, which heads read; with "direct", they also contain x."""
        return self.d_hidden + (self.d_context if self.connections == "direct" else 0)

    def activation_bytes(
        self, length: int, item: int, *, on_cpu: bool, recompute: bool = False
    ) -> int:
        """Return the number of activation bytes per token kept for the backward pass in training.

        They are context embeddings, the tanh layer and the input of the head, in float32.
        """
        return 4 * (3 * self.d_context + 3 * self.d_hidden + 2 * self.d_head_input)

    @property
    def head_config(self) -> HeadInput:
        """The sizes and settings for building heads, which read hidden states of width W."""
        return projecting_head_config(self, self.d_head_input, self.dropout)

    def build(self) -> NGramModel:
        """Return the module with uninitialized weights (see `Spec.build`)."""
        return NGramModel(self)


class NGramModel(LanguageModule):
    """The feed-forward n-gram model, whose hidden states are those of one tanh layer.

    At each position, x are the concatenated embeddings of the last n-1 tokens. The hidden state is
    h = tanh(d + H x), or (h, x) with direct connections. The head computes y = b + W x + U h.
    Source: Bengio et al. 2003, equation 1.
    """

    def __init__(self, model: NGramSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_embedding(model.vocab_size, model.d_model)
        # The embedding of every position before a text.
        self.before = nn.Parameter(torch.empty(model.d_model))
        self.hidden = nn.Linear(model.d_context, model.d_hidden)
        self.heads = build_heads(model)

    def initializer(self) -> RecurrentInitializer:
        """Return the `Initializer` of the weights, which is that of recurrent models."""
        return RecurrentInitializer(self)

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The tanh layer, the only layer between token embeddings and heads."""
        return iter((self.hidden,))

    @property
    def has_fixed_shapes(self) -> bool:
        """True. See `LanguageModule.has_fixed_shapes`."""
        return True

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """Return an empty cache of token ids, from which contexts are read in each step."""
        return build_token_cache(slots, slot_length, self.device)

    def forward(
        self, input_ids: Tensor, *, gather_positions: Tensor | None = None, **inputs: Any
    ) -> Tensor:
        """Return hidden states [B, T, W], each computed from the last n-1 tokens.

        With `gather_positions`, the result is [M, W]. Arguments are as in `Transformer.read`;
        `inputs` is passed on to `context_tokens`. Padding and tokens of other documents count as
        positions before the text.

        Raises:
            SpecError: an attention mask or document ids are given together with a cache.
        """
        earlier = context_tokens(
            input_ids, self.spec.order - 1, gather_positions=gather_positions, **inputs
        )
        vectors = self.tokens(earlier.clamp(min=0))
        context = torch.where(earlier[..., None] >= 0, vectors, self.before).flatten(-2)
        context = F.dropout(context, self.spec.dropout, self.training)
        hidden = F.dropout(torch.tanh(self.hidden(context)), self.spec.dropout, self.training)
        if self.spec.connections == "hidden":
            return hidden
        return torch.cat((hidden, context.to(hidden.dtype)), -1)


def context_tokens(
    input_ids: Tensor,
    count: int,
    *,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    document_ids: Tensor | None = None,
    gather_positions: Tensor | None = None,
    cache: Cache | None = None,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Return the ids of the last `count` tokens up to and including each position.

    The most recent token comes first, and positions before a text are -1. The result is [B, T,
    count], or [M, count] with `gather_positions`. Arguments and errors are as
    in `NGramModel.forward`. `position_ids` are not used.
    """
    length, texts = input_ids.shape[1], input_ids
    columns = torch.arange(length, device=input_ids.device).expand_as(input_ids)
    if cache is not None:
        refuse("a cache takes no", attention_mask=attention_mask, document_ids=document_ids)
        texts, columns = append_tokens(cache, input_ids, slots, lengths)
    elif attention_mask is not None:
        texts = torch.where(attention_mask.bool(), input_ids, -1)
    back = torch.arange(count, device=input_ids.device)
    place = columns[..., None] - back  # [B, T, count]
    # Columns of padding may lie beyond the texts in the cache.
    inside = place.clamp(0, texts.shape[1] - 1).flatten(1)
    earlier = texts.gather(1, inside).view_as(place)
    outside = place < 0
    if document_ids is not None:
        theirs = document_ids.gather(1, inside).view_as(place)
        outside |= theirs != document_ids[..., None]
    return gather(earlier.masked_fill(outside, -1), gather_positions)
