"""What every model has: a table of token vectors, and heads that read its hidden states."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.heads import VocabularyHead, build_head
from trivium.nn.loss import linear_cross_entropy


class HeadedModel(nn.Module):
    """Token vectors and heads; between them stands what makes one model another.

    Every model has besides them a `spec`, a `forward` that turns ids [B, T] into hidden states
    [B, T, D], and `new_cache` where it can go on with texts.
    """

    tokens: nn.Embedding
    heads: nn.ModuleDict

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.tokens.weight.dtype

    @property
    def vocabulary_tables(self) -> list[nn.Parameter]:
        """The matrices with a row for each token: that of the token vectors, and those of heads."""
        heads = (head.weight for head in self.heads.values() if isinstance(head, VocabularyHead))
        tables = (self.tokens.weight, *heads)
        return [table for table in tables if isinstance(table, nn.Parameter)]

    @property
    def num_token_types(self) -> int:
        """Kinds of sentence that the model tells apart; none, unless a model says otherwise."""
        return 0

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The modules between token vectors and heads, whose matrices Muon may train."""
        raise NotImplementedError

    def compile_blocks(self) -> None:
        """Compile what gains by it; nothing, unless a model says otherwise."""

    def compile_step(self) -> None:
        """Compile writing one more token; nothing, unless a model says otherwise."""

    def logits(
        self, hidden: Tensor, *, head: str | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """What a head says of hidden states.

        Args:
            hidden: [..., D]; [B, T, D] for heads that read a whole text.
            head: the kind of head; None: that over the vocabulary, or else the first there is.
            attention_mask: [B, T], nonzero where a token is real, for heads of a whole text.

        Returns:
            [..., V] for a head over the vocabulary, or the head's own shape.

        Raises:
            SpecError: the model has no such head.
        """
        if head is None:
            head = self._vocabulary_kind() or next(iter(self.heads), None)
        if head is None or head not in self.heads:
            known = ", ".join(self.heads) or "none"
            wanted = "head" if head is None else f"{head} head"
            raise SpecError(f"this model has no {wanted}; it has: {known}.")
        chosen = self.heads[head]
        if isinstance(chosen, VocabularyHead):
            if chosen.product is not None:
                return chosen.product(chosen(hidden))
            return F.linear(chosen(hidden), self._matrix(chosen), chosen.bias)
        return chosen(hidden, attention_mask)

    def vocabulary_loss(self, hidden: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Summed nats of `targets` [M] given hidden [M, D].

        `smoothing` is the share of every target that is spread over the whole vocabulary.
        """
        kind = self._vocabulary_kind()
        if kind is None:
            raise SpecError("this model has no head over the vocabulary (lm or mlm).")
        head = self.heads[kind]
        assert isinstance(head, VocabularyHead)
        features = head(hidden)
        if head.product is None:
            matrix = self._matrix(head)
        else:
            matrix = head.product.whole(features.dtype)
        return linear_cross_entropy(features, matrix, head.bias, targets, smoothing=smoothing)

    def _vocabulary_kind(self) -> str | None:
        kinds = (kind for kind, head in self.heads.items() if isinstance(head, VocabularyHead))
        return next(kinds, None)

    def _matrix(self, head: VocabularyHead) -> Tensor:
        return self.tokens.weight if head.weight is None else head.weight


def build_heads(model: spec.AnySpec) -> nn.ModuleDict:
    """The heads of a model, by kind."""
    return nn.ModuleDict({head.kind: build_head(head, model.head_input) for head in model.heads})


def empty_table(rows: int, width: int) -> nn.Embedding:
    """A table not yet filled: on the meta device filling one costs an import of seconds."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class WideEmbedding(nn.Embedding):
    """A table of 16 bits a number, read in float32: int64 [...] -> float32 [..., D]."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__(table.num_embeddings, table.embedding_dim, _weight=table.weight.detach())

    def forward(self, input: Tensor) -> Tensor:
        """The vectors of some tokens."""
        return super().forward(input).float()
