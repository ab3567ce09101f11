"""The feed-forward n-gram language model (Bengio et al. 2003).

Shape letters: B batch, T positions, M selected positions, m width of token vectors, n order,
W width of hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator

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

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        select: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the contexts that end at each position: [B, T, W], or [M, W].

        Arguments are as in `Transformer.read`. Padding, and tokens of another document, count as
        before the text. `position_ids` are not needed.

        Raises:
            SpecError: a mask or documents together with a cache.
        """
        length = input_ids.shape[1]
        real = None if attention_mask is None else attention_mask.bool()
        if cache is not None:
            refuse("a cache takes no", attention_mask=attention_mask, document_ids=document_ids)
            input_ids, real = self._with_cached(input_ids, cache, slots, lengths)
        context = self._contexts(input_ids, real, document_ids)[:, -length:]
        if select is not None:
            context = context.flatten(0, 1).index_select(0, select)
        context = F.dropout(context, self.spec.dropout, self.training)
        hidden = F.dropout(torch.tanh(self.hidden(context)), self.spec.dropout, self.training)
        if self.spec.connections == "hidden":
            return hidden
        return torch.cat((hidden, context.to(hidden.dtype)), -1)

    def _with_cached(
        self, ids: Tensor, cache: Cache, slots: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The ids with the n-2 before them, [B, n-2 + T], and which of these are in the text."""
        texts, new = append_tokens(cache, ids, slots, lengths)
        back = torch.arange(2 - self.spec.order, 0, device=ids.device)
        earlier = new[:, :1] + back
        before = texts.gather(1, earlier.clamp(min=0))
        real = torch.cat((earlier >= 0, torch.ones_like(ids, dtype=torch.bool)), 1)
        return torch.cat((before, ids), 1), real

    def _contexts(
        self, input_ids: Tensor, real: Tensor | None, document_ids: Tensor | None
    ) -> Tensor:
        """The vectors of the n-1 tokens up to each position, the last first: [B, T, (n-1) m]."""
        vectors, length = self.tokens(input_ids), input_ids.shape[1]
        if real is not None:
            vectors = torch.where(real[..., None], vectors, self.before)
        outside = self.before.expand(len(input_ids), self.spec.order - 2, -1)
        padded, parts = torch.cat((outside, vectors), 1), []
        for back in range(self.spec.order - 1):
            earlier = padded[:, self.spec.order - 2 - back :][:, :length]
            if document_ids is not None:
                same = F.pad(document_ids, (back, 0), value=-1)[:, :length] == document_ids
                earlier = torch.where(same[..., None], earlier, self.before)
            parts.append(earlier)
        return torch.cat(parts, -1)
