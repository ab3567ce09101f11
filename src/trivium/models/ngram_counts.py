"""The count-based n-gram language model: add-k and interpolated Kneser-Ney smoothing.

Shape letters: B batch, T positions, M selected positions, n order, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.models.base_model import LanguageModule, Spec
from trivium.models.heads import HeadInput, Heads
from trivium.models.heads.vocabulary import LMHead
from trivium.models.ngram import context_tokens
from trivium.nn.part import Positive, empty_embedding
from trivium.nn.state import Cache, build_token_cache


class NGramCountsSpec(Spec):
    """The spec of a count-based n-gram model: n-1 preceding tokens predict the next token.

    With c(h w) the count of the token w after the context h, and V tokens in the vocabulary:

        add-k        P(w | h) = (c(h w) + k) / (c(h) + k V)
        kneser-ney   P(w | h) = (max(c(h w) - D, 0) + D N(h) P(w | h')) / c(h)

    N(h) is the number of different tokens after h, and h' is h without its oldest token. For all
    orders except the highest, c(h w) is the number of different tokens before h w. The lowest order
    is interpolated with 1 / V. Unless `discount` sets D for all orders, D of an order is
    n1 / (n1 + 2 n2), for n1 n-grams with count 1 and n2 n-grams with count 2 (0.5 if n1 = 0).

    Source: Chen and Goodman 1998, section 2.1 (additive) and 2.7 (Kneser-Ney), interpolated as in
    section 3; Ney et al. 1994 for D.
    """

    counts: ClassVar[bool] = True
    supports_task_heads: ClassVar[bool] = False  # it has no hidden states
    kind: Literal["n-gram-counts"] = "n-gram-counts"
    order: Annotated[int, Field(ge=1)]
    smoothing: Literal["kneser-ney", "add-k"] = "kneser-ney"
    k: Positive = 1.0
    discount: Annotated[float, Field(gt=0, le=1)] | None = None
    d_model: Any = 0  # it has no hidden states
    heads: Heads = (LMHead(tied=True),)

    def check(self) -> None:
        """Raise SpecError if `d_model` is not 0, or there is another head than the tied LM head."""
        super().check()
        if self.d_model != 0 or any(head != LMHead(tied=True) for head in self.heads):
            raise SpecError(
                "an n-gram model of counts has no vectors: leave d_model and heads out of its spec."
            )

    def with_dropout(self, dropout: float) -> Self:
        """Return the spec itself, because the model has no dropout."""
        return self

    def activation_bytes(
        self, length: int, item: int, *, on_cpu: bool, recompute: bool = False
    ) -> int:
        """Return 0 activation bytes, because the model has no backward pass."""
        return 0

    @property
    def head_config(self) -> HeadInput:
        """The vocabulary size, and widths of 0, because the model has no hidden states."""
        return HeadInput(self.vocab_size, d_model=0, d_embedding=0)

    def build(self) -> NGramCounts:
        """Return the module with uninitialized weights (see `Spec.build`)."""
        return NGramCounts(self)


class _Followers(dict[int, int]):
    """The count of each token that follows a context, and the total of these counts."""

    total = 0
    _tensors: tuple[Tensor, Tensor] | None = None

    def add(self, token: int, count: int) -> None:
        """Add `count` to the count of a following token."""
        self[token] = self.get(token, 0) + count
        self.total += count
        self._tensors = None

    def as_tensors(self) -> tuple[Tensor, Tensor]:
        """Return the token ids, int64, and their counts, float64, cached until a count changes."""
        if self._tensors is None:
            counts = torch.tensor([*self.values()], dtype=torch.float64)
            self._tensors = torch.tensor([*self], dtype=torch.int64), counts
        return self._tensors


class NGramCounts(LanguageModule):
    """Count-based n-gram model. In training mode, `lm_loss` counts n-grams after the loss.

    The training loss is therefore the loss on text that has not been counted yet (the prequential
    code length, Dawid 1984). There are no weights and no gradients.
    """

    def __init__(self, model: NGramCountsSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_embedding(model.vocab_size, 0)
        self.heads = nn.ModuleDict()  # logits are the logarithms of probabilities
        self._reset_counts()

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """Only the empty module dict of the heads, because the model has no layers."""
        return iter((self.heads,))

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """Return an empty cache of token ids, from which contexts are read in each step."""
        return build_token_cache(slots, slot_length, self.device)

    def forward(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Return, in place of hidden states, the context of n-1 tokens that ends at each position.

        The result is int64 [B, T, n-1], or [M, n-1] with `gather_positions`. It contains token ids,
        most recent first, and -1 for positions before the text. Arguments are as in
        `NGramModel.forward`.
        """
        return context_tokens(input_ids, self.spec.order - 1, **inputs)

    def logits(
        self, hidden: Tensor, head: str | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return next-token log-probabilities [..., V] for contexts `hidden` [..., n-1].

        `head` and `attention_mask` are not used.
        """
        rows = [self._probabilities(tuple(context)) for context in hidden.flatten(0, -2).tolist()]
        shape = *hidden.shape[:-1], self.spec.vocab_size
        return torch.stack(rows).log().to(hidden.device, self.dtype).view(shape)

    def lm_loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the summed loss in nats of `targets` [M] after contexts `hidden` [M, n-1].

        In training mode, all n-grams (context and target) are then counted. `smoothing` is not
        used.
        """
        loss, pairs = 0.0, [*zip(map(tuple, hidden.tolist()), targets.tolist(), strict=True)]
        for context, token in pairs:
            loss -= math.log(self._probability(context, token))
        for context, token in pairs if self.training else ():
            self._count_ngram(context, token)
        return loss + self.tokens.weight.sum()  # 0, because there are no weights

    def get_extra_state(self) -> Tensor:
        """Return all n-grams and their counts for a checkpoint, int32 [N, n + 1].

        A row contains the context (most recent token first), the token after it, and the count.
        """
        rows = [
            (*context, token, count)
            for context, followers in self._tables[-1].items()
            for token, count in followers.items()
        ]
        return torch.tensor(rows, dtype=torch.int32).view(-1, self.spec.order + 1)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore all counts from a checkpoint: n-grams as returned by `get_extra_state`."""
        self._reset_counts()
        for *context, token, count in state.tolist():
            self._count_ngram(tuple(context), token, count)

    def _reset_counts(self) -> None:
        """Set all counts to zero."""
        self._tables: list[dict[tuple[int, ...], _Followers]]
        self._tables = [{} for _ in range(self.spec.order)]
        self._ngrams_by_count = [Counter[int]() for _ in self._tables]  # number of n-grams by count

    def _count_ngram(self, context: tuple[int, ...], token: int, count: int = 1) -> None:
        """Add `count` to the count of the n-gram (context, token).

        If the n-gram is new, 1 is added to the n-gram without its oldest token, and so on.
        """
        for table, sizes in zip(reversed(self._tables), reversed(self._ngrams_by_count)):
            followers = table.setdefault(context, _Followers())
            before = followers.get(token, 0)
            followers.add(token, count)
            sizes[before] -= 1
            sizes[before + count] += 1
            if before:
                return
            context, count = context[:-1], 1

    def _order_terms(self, context: tuple[int, ...]) -> Iterator[tuple[_Followers, float, float]]:
        """Yield the terms of smoothing for a context, from the lowest order to the highest.

        Each is (counts of following tokens, discount D, weight of the lower order's probability).
        Orders in which the context never occurred are left out.
        """
        if self.spec.smoothing == "add-k":
            if followers := self._tables[-1].get(context):
                yield followers, 0.0, self.spec.k * self.spec.vocab_size
            return
        for size, (table, sizes) in enumerate(zip(self._tables, self._ngrams_by_count)):
            if (followers := table.get(context[:size])) is None:
                return
            once, twice = sizes[1], sizes[2]
            discount = self.spec.discount or (once / (once + 2 * twice) if once else 0.5)
            yield followers, discount, discount * len(followers)

    def _probability(self, context: tuple[int, ...], token: int) -> float:
        """Return the smoothed probability of a token after a context."""
        p = 1.0 / self.spec.vocab_size
        for followers, discount, backoff in self._order_terms(context):
            counted = max(followers.get(token, 0) - discount, 0.0)
            p = (counted + backoff * p) / (followers.total - discount * len(followers) + backoff)
        return p

    def _probabilities(self, context: tuple[int, ...]) -> Tensor:
        """Return the smoothed probability of every token after a context, float64 [V]."""
        p = torch.full((self.spec.vocab_size,), 1.0 / self.spec.vocab_size, dtype=torch.float64)
        for followers, discount, backoff in self._order_terms(context):
            p *= backoff
            tokens, counts = followers.as_tensors()
            p[tokens] += counts - discount
            p /= followers.total - discount * len(followers) + backoff
        return p
