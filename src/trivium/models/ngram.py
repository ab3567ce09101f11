"""The feed-forward n-gram language model (Bengio et al. 2003).

Shape letters: B batch, T positions, M selected positions, m width of token vectors, n order,
W width of what the head reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.headed import HeadedModel, build_heads, empty_table


class NGramCache:
    """The last n-2 tokens of every text: what the next position sees besides its own token.

    Args:
        batch: rows.
        max_length: where the caller stops; more tokens need no more room.
    """

    def __init__(self, batch: int, max_length: int) -> None:
        self.batch, self.max_length = batch, max_length
        self.length = 0
        self.ids: Tensor | None = None
        # Which of them are real, where texts side by side were not equally long.
        self.real: Tensor | None = None

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: int64 [B]."""
        self.batch = len(rows)
        self.ids = None if self.ids is None else self.ids[rows]
        self.real = None if self.real is None else self.real[rows]

    def can_shorten(self, tokens: int) -> bool:
        """Whether rows may go back by so many tokens: what stood before them is forgotten."""
        return tokens == 0

    def make_room(self, max_length: int, rows: int = 0) -> None:
        """Allow texts of this many tokens, and more rows."""
        self.max_length = max(self.max_length, max_length)

    def join(self, other: NGramCache, lengths: Sequence[int]) -> None:
        """Take over the rows of another cache, of `lengths` tokens."""
        assert other.ids is not None
        caches = [cache for cache in (self, other) if cache.batch and cache.ids is not None]
        ids = [cache.ids for cache in caches if cache.ids is not None]
        real = [
            torch.ones_like(part, dtype=torch.bool) if cache.real is None else cache.real
            for cache, part in zip(caches, ids)
        ]
        width = max(part.shape[1] for part in ids)
        self.ids, self.real = (
            torch.cat([F.pad(part, (width - part.shape[1], 0)) for part in parts])
            for parts in (ids, real)
        )
        self.batch += len(lengths)
        self.length = max(self.length, *lengths)

    def leave(self, row: int) -> None:
        """Drop a row; the last one takes its place."""
        rows = list(range(self.batch - 1))
        if row < len(rows):
            rows[row] = self.batch - 1
        self.reorder(torch.tensor(rows, dtype=torch.int64))


class NGramModel(HeadedModel):
    """Hidden states h = tanh(d + H x) of the n-1 tokens up to a position, joined with x if direct.

    Source: Bengio et al. 2003, equation 1; y = b + W x + U h is the head's product with (h, x).
    """

    def __init__(self, model: spec.NGramSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_table(model.vocab_size, model.d_model)
        # What stands in the places before a text.
        self.before = nn.Parameter(torch.empty(model.d_model))
        self.hidden = nn.Linear(model.d_context, model.d_hidden)
        self.heads = build_heads(model)

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The tanh layer."""
        return iter((self.hidden,))

    def new_cache(self, batch: int, max_length: int) -> NGramCache:
        """The last tokens of `batch` texts; see `Transformer.new_cache`."""
        return NGramCache(batch, max_length)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: NGramCache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the contexts that end at each position.

        Args:
            input_ids: int64 [B, T].
            attention_mask: [B, T], nonzero where a token is real; a place that is not real counts
                as before the text. With a cache it covers the tokens before too.
            token_type_ids: not taken: the model has no token types.
            position_ids: not needed.
            document_ids: int64 [B, T]; what belongs to another document counts as before the text.
            cache: the last tokens before these, replaced by the last of these.
            select: int64 [M], flat positions in B * T; the others are not computed.

        Returns:
            [B, T, W], or [M, W] with `select`.

        Raises:
            SpecError: token types, or documents together with a cache.
        """
        if token_type_ids is not None:
            raise SpecError("an n-gram model has no token types: leave token_type_ids out.")
        if document_ids is not None and cache is not None:
            raise SpecError("a cache holds one text a row: give no document_ids with it.")
        length = input_ids.shape[1]
        real = None if attention_mask is None else attention_mask.bool()
        if cache is not None:
            input_ids, real = self._with_cached(input_ids, real, cache)
        if real is not None:
            real = real[:, -input_ids.shape[1] :]
        context = self._contexts(input_ids, real, document_ids)[:, -length:]
        if select is not None:
            context = context.flatten(0, 1).index_select(0, select)
        context = F.dropout(context, self.spec.dropout, self.training)
        hidden = F.dropout(torch.tanh(self.hidden(context)), self.spec.dropout, self.training)
        if self.spec.connections == "hidden":
            return hidden
        return torch.cat((hidden, context.to(hidden.dtype)), -1)

    def _with_cached(
        self, input_ids: Tensor, real: Tensor | None, cache: NGramCache
    ) -> tuple[Tensor, Tensor | None]:
        """The ids with those kept before them; the last n-2 are kept for the next call."""
        cache.length += input_ids.shape[1]
        if cache.real is not None and real is None:
            real = torch.cat((cache.real, torch.ones_like(input_ids, dtype=torch.bool)), 1)
        if cache.ids is not None:
            input_ids = torch.cat((cache.ids, input_ids), 1)
        first = max(0, input_ids.shape[1] - self.spec.order + 2)
        cache.ids = input_ids[:, first:]
        cache.real = None if cache.real is None or real is None else real[:, first:]
        return input_ids, real

    def _contexts(
        self, input_ids: Tensor, real: Tensor | None, document_ids: Tensor | None
    ) -> Tensor:
        """The vectors of the n-1 tokens up to each position, the last first: [B, T, (n-1) m]."""
        vectors, length = self.tokens(input_ids), input_ids.shape[1]
        seen = vectors
        if real is not None:
            seen = torch.where(real[..., None], vectors, self.before)
        parts = [seen]
        for back in range(1, self.spec.order - 1):
            outside = self.before.expand(len(input_ids), min(back, length), -1)
            earlier = seen[:, : max(0, length - back)]
            if document_ids is not None:
                same = document_ids[:, back:] == document_ids[:, : max(0, length - back)]
                earlier = torch.where(same[..., None], earlier, self.before)
            parts.append(torch.cat((outside, earlier), 1))
        return torch.cat(parts, -1)


@torch.no_grad()
def initialize_ngram(model: NGramModel, seed: int) -> None:
    """Draw the starting weights from a seed, the same on every device.

    Rows of the vocabulary uniform in +-0.1, matrices as Glorot and Bengio 2010, biases 0.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(table) for table in model.vocabulary_tables}
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.zero_()
        else:
            bound = 0.1 if id(weight) in tables else math.sqrt(6.0 / sum(weight.shape))
            weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
