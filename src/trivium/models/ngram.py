"""The feed-forward n-gram language model (Bengio et al. 2003).

Shape letters: B batch, T positions, M selected positions, m width of token vectors, n order,
W width of hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.models.base_model import LanguageModule, build_heads, empty_table, refuse
from trivium.nn.state import Cache, append_tokens, token_cache


class NGramModel(LanguageModule, of=spec.NGramSpec):
    """Hidden states h = tanh(d + H x) of the n-1 tokens up to a position, joined with x if direct.

    Source: Bengio et al. 2003, equation 1; y = b + W x + U h is the head's product with (h, x).
    """

    def __init__(self, model: spec.NGramSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_table(model.vocab_size, model.d_model)
        # The vector of every position before a text.
        self.before = nn.Parameter(torch.empty(model.d_model))
        self.hidden = nn.Linear(model.d_context, model.d_hidden)
        self.heads = build_heads(model)

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The tanh layer."""
        return iter((self.hidden,))

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """See `LanguageModule.new_cache`. The tokens themselves are kept."""
        return token_cache(slots, slot_length, self.device)

    def forward(self, input_ids: Tensor, *, select: Tensor | None = None, **inputs: Any) -> Tensor:
        """Hidden states of the contexts that end at each position: [B, T, W], or [M, W].

        Arguments are as in `Transformer.read`, those that `earlier_tokens` has. Padding, and tokens
        of another document, count as before the text.

        Raises:
            SpecError: a mask or documents together with a cache.
        """
        earlier = earlier_tokens(input_ids, self.spec.order - 1, select=select, **inputs)
        vectors = self.tokens(earlier.clamp(min=0))
        context = torch.where(earlier[..., None] >= 0, vectors, self.before).flatten(-2)
        context = F.dropout(context, self.spec.dropout, self.training)
        hidden = F.dropout(torch.tanh(self.hidden(context)), self.spec.dropout, self.training)
        if self.spec.connections == "hidden":
            return hidden
        return torch.cat((hidden, context.to(hidden.dtype)), -1)


def earlier_tokens(
    input_ids: Tensor,
    count: int,
    *,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    document_ids: Tensor | None = None,
    select: Tensor | None = None,
    cache: Cache | None = None,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """The `count` tokens up to each position, the last first, -1 before a text: [B, T, count], or
    [M, count] with `select`.

    Arguments and errors are as of `NGramModel.forward`. `position_ids` are not needed.
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
    # Padding of a cache may be after the texts.
    inside = place.clamp(0, texts.shape[1] - 1).flatten(1)
    earlier = texts.gather(1, inside).view_as(place)
    outside = place < 0
    if document_ids is not None:
        theirs = document_ids.gather(1, inside).view_as(place)
        outside |= theirs != document_ids[..., None]
    earlier = earlier.masked_fill(outside, -1)
    return earlier if select is None else earlier.flatten(0, 1).index_select(0, select)
