"""The Transformer: one block, one stack, one model for every family.

Shape letters: B batch, T query positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.heads import LMHead, MLMHead, build_head
from trivium.nn.attention import Attention
from trivium.nn.cache import Cache, LayerCache
from trivium.nn.feed_forward import build_feed_forward
from trivium.nn.loss import linear_cross_entropy
from trivium.nn.mask import Mask
from trivium.nn.norm import build_norm
from trivium.nn.positions import Rotation, build_positions, check_length
from trivium.nn.precision import for_products


class PreNorm(nn.Module):
    """x + dropout(f(norm(x))): the stream itself is never normalised (GPT-2, LLaMA)."""

    def __init__(self, norm: spec.LayerNorm | spec.RMSNorm, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = build_norm(norm, width), dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return x + F.dropout(sublayer(for_products(self.norm(x))), self.dropout, self.training)


class PostNorm(PreNorm):
    """norm(x + dropout(f(x))): as first published (Vaswani et al. 2017, BERT)."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.norm(x + F.dropout(sublayer(for_products(x)), self.dropout, self.training))


class Block(nn.Module):
    """One layer: attention, then feed-forward, each inside a residual connection."""

    def __init__(self, stack: spec.Stack, layer: int, width: int) -> None:
        super().__init__()
        residual = PreNorm if stack.norm_order == "pre" else PostNorm
        self.attention = Attention(stack.attention_of(layer), width, stack.dropout)
        self.attention_residual = residual(stack.norm, width, stack.dropout)
        self.feed_forward = build_feed_forward(stack.feed_forward, width)
        self.feed_forward_residual = residual(stack.norm, width, stack.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        rotation: Rotation | None,
        cache: LayerCache | None,
        select: Tensor | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], or with `select` [M] the feed-forward of those alone: [M, D]."""

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, mask, rotation=rotation, cache=cache)

        x = self.attention_residual(x, attend)
        if select is not None:
            x = x.flatten(0, 1).index_select(0, select)
        return self.feed_forward_residual(x, self.feed_forward)


class Stack(nn.Module):
    """The blocks of an encoder or a decoder and, after pre-norm blocks, a last norm."""

    def __init__(self, stack: spec.Stack, width: int) -> None:
        super().__init__()
        self.spec = stack
        self.layers = nn.ModuleList(Block(stack, i, width) for i in range(stack.num_layers))
        self.norm = build_norm(stack.norm, width) if stack.norm_order == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        position_ids: Tensor,
        cache: Cache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], or with `select` [M] those alone: [M, D]."""
        rotations: dict[tuple[spec.Rotary, int], Rotation] = {}
        for i, layer in enumerate(self.layers):
            attention, rotation = self.spec.attention_of(i), None
            if attention.positions is not None:
                key = attention.positions, attention.head_dim
                if key not in rotations:
                    rotations[key] = Rotation(*key, position_ids)
                rotation = rotations[key]
            last = i + 1 == len(self.layers)
            remembered = cache.layers[i] if cache else None
            x = layer(x, mask, rotation, remembered, select if last else None)
        return self.norm(x)


class Embedding(nn.Module):
    """Token vectors, plus position and token-type vectors, normalised where the family does."""

    def __init__(self, model: spec.ModelSpec, dropout: float) -> None:
        super().__init__()
        embedding, width = model.embedding, model.d_model
        self.scale, self.dropout = embedding.scale, dropout
        self.tokens = _embedding(model.vocab_size, width)
        self.positions = build_positions(embedding.positions, width)
        self.token_types = None
        if embedding.num_token_types:
            self.token_types = _embedding(embedding.num_token_types, width)
        self.norm = build_norm(embedding.norm, width) if embedding.norm else nn.Identity()

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        token_type_ids: Tensor | None,
    ) -> Tensor:
        """Int64 [B, T] -> [B, T, D]."""
        x = self.tokens(input_ids) * self.scale if self.scale != 1.0 else self.tokens(input_ids)
        if self.positions is not None:
            x = x + self.positions(position_ids)
        if self.token_types is not None:
            # Sentence A everywhere unless told otherwise.
            first = self.token_types.weight[0]
            x = x + (first if token_type_ids is None else self.token_types(token_type_ids))
        return F.dropout(self.norm(x), self.dropout, self.training)


def _embedding(rows: int, width: int) -> nn.Embedding:
    """A table not yet filled: on the meta device filling one costs an import of seconds."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class Transformer(nn.Module):
    """Encoder-only or decoder-only model; `spec.family` says which.

    The forward pass gives hidden states; heads turn them into logits, or straight into a loss
    without ever holding all logits.
    """

    def __init__(self, model: spec.ModelSpec) -> None:
        super().__init__()
        if model.family == "encoder-decoder":
            raise SpecError(
                "models with both an encoder and a decoder (encoder-decoder) cannot be built yet: "
                "leave one of them out."
            )
        self.spec = model
        stack = model.stacks[0]
        self.embedding = Embedding(model, stack.dropout)
        self.stack = Stack(stack, model.d_model)
        self.heads = nn.ModuleDict({head.kind: build_head(head, model) for head in model.heads})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.embedding.tokens.weight.dtype

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: Cache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the last layer.

        Args:
            input_ids: int64 [B, T].
            attention_mask: [B, S], nonzero where a token is real; with a cache it covers the
                cached tokens too.
            token_type_ids: int64 [B, T], sentence A (0) or B (1).
            position_ids: int64 [B, T]; None: counted from the first token.
            document_ids: int64 [B, T]; tokens see only those of the same document.
            cache: decoder only; keys and values of earlier tokens, extended in place.
            select: int64 [M], flat positions in B * T whose hidden states are wanted; the last
                feed-forward network runs on them alone.

        Returns:
            [B, T, D], or [M, D] with `select`.

        Raises:
            SpecError: the input is longer than the model's positions.
        """
        start = cache.length if cache else 0
        length = input_ids.shape[1]
        check_length(start + length, self.spec.max_length)
        if position_ids is None:
            position_ids = torch.arange(start, start + length, device=input_ids.device)[None]
        mask = Mask(
            causal=self.spec.decoder is not None,
            padding=None if attention_mask is None else attention_mask.bool(),
            documents=document_ids,
            start=start,
        )
        x = self.embedding(input_ids, position_ids, token_type_ids)
        hidden = self.stack(x, mask, position_ids, cache, select)
        if cache is not None:
            cache.length += length
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of hidden states: [..., D] -> [..., V]."""
        head, weight = self._vocabulary()
        return F.linear(head(hidden), weight, head.bias)

    def vocabulary_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Summed nats of `targets` [M] given hidden [M, D]."""
        head, weight = self._vocabulary()
        return linear_cross_entropy(head(hidden), weight, head.bias, targets)

    def _vocabulary(self) -> tuple[LMHead | MLMHead, Tensor]:
        for head in self.heads.values():
            if isinstance(head, LMHead | MLMHead):
                return head, self.embedding.tokens.weight if head.weight is None else head.weight
        raise SpecError("this model has no head over the vocabulary (lm or mlm).")
