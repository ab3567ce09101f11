"""Multi-head attention, for self-attention and cross-attention of every family.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.attend import MAX_EAGER_SCORES, attend, attention_probabilities
from trivium.nn.context import Context
from trivium.nn.mask import Mask
from trivium.nn.mixers import PROJECTIONS, MixerModule
from trivium.nn.norm import build_norm
from trivium.nn.part_module import module_class
from trivium.nn.positions import PositionsModule
from trivium.nn.precision import to_autocast_dtype
from trivium.nn.state import KeysValues, Ring, State


@dataclass(frozen=True)
class Prepared:
    """What the layers with equal attention share in a pass: the mask, and what positions made."""

    mask: Mask
    positions: Any = None


class AttentionMixer(MixerModule, of=spec.Attention):
    """MultiHead(x) = Concat(softmax(Q_n K_n^T * scale) V_n) W_O.

    Source: Vaswani et al. 2017, section 3.2; with fewer key-value heads than heads it is
    grouped-query attention (Ainslie et al. 2023). Scale is H^-0.5 unless the part has another;
    `spec.Attention` has what else may be done to queries, keys and scores. All layers of a stack
    together keep at most `MAX_EAGER_SCORES` for backward.
    """

    parallel: ClassVar[Mapping[str, str]] = PROJECTIONS

    def __init__(
        self, part: spec.Attention, width: int, dropout: float = 0.0, num_layers: int = 1
    ) -> None:
        super().__init__(part, width)
        self.part, self.head_dim, self.dropout = part, part.head_dim, dropout
        self.soft_cap = part.soft_cap
        self.scale = part.score_scale
        self.max_scores = MAX_EAGER_SCORES // num_layers
        queries, keys = part.num_heads * part.head_dim, part.kv_heads * part.head_dim
        self.query = nn.Linear(width, queries, bias=part.bias)
        self.key = nn.Linear(width, keys, bias=part.has_key_bias)
        self.value = nn.Linear(width, keys, bias=part.bias)
        self.output = nn.Linear(queries, width, bias=part.has_output_bias)
        self.query_norm = build_norm(part.qk_norm, part.head_dim)
        self.key_norm = build_norm(part.qk_norm, part.head_dim)
        kind = PositionsModule if part.positions is None else module_class(part.positions)
        self.positions: PositionsModule = kind(part, width)

    @property
    def table_key(self) -> Hashable:
        """See `MixerModule.table_key`."""
        return self.part.positions, self.part.num_heads

    def new_table(self) -> nn.Module | None:
        """See `MixerModule.new_table`."""
        return self.positions.new_table()

    def prepare(
        self, context: Context, state: Any = None, table: nn.Module | None = None
    ) -> Prepared:
        """The mask and what positions need. The mask computes the bias of positions."""
        keys = context.keys
        if context.span is not None and state is not None:
            columns = state.columns(context.span, context.columns)
            keys = Context(columns, columns)
        return self.prepare_for(context, keys, table)

    def prepare_for(self, context: Context, keys: Context, table: nn.Module | None) -> Prepared:
        """What `prepare` gives, of tokens that attend to these keys."""
        ready = self.positions.prepare(context, keys, table)
        mask = Mask(
            context,
            keys,
            self.part.pattern,
            self.positions.bias(ready),
            num_heads=self.part.num_heads,
            eager=self.soft_cap is not None,
        )
        return Prepared(mask, ready)

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Keys and values: of whole texts, or of as many last tokens as a window sees."""
        shape = self.part.kv_heads, self.head_dim, like
        reach = None if self.part.pattern is None else self.part.pattern.reach
        if reach is not None and reach + Ring.SPARE < length:
            return Ring(slots, reach, *shape)
        return KeysValues(slots, length, *shape)

    def forward(
        self,
        x: Tensor,
        context: Context,
        state: Any = None,
        prepared: Prepared | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; keys and values of earlier tokens are extended in place."""
        if context.columns.shape[1] != x.shape[1]:
            raise SpecError(
                f"x has {x.shape[1]} tokens, and its context is of {context.columns.shape[1]}: "
                "give Context.of_length(T) of as many."
            )
        mixed = self.attended(x, context, state, prepared or self.prepare(context, state))
        return self.output(mixed.to(x.dtype).transpose(1, 2).flatten(2))

    def attended(self, x: Tensor, context: Context, state: Any, prepared: Prepared) -> Tensor:
        """Values as heads mix them: [B, T, D] -> [B, N, T, H]."""
        query, key, value = self._query_key_value(x, context, state, prepared)
        scores = self._scores(query, key, prepared)
        return self.attend_with(query, key, value, prepared.mask, scores)

    def attend_with(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scores: Tensor | None = None
    ) -> Tensor:
        """Return `nn.attend.attend` of these with the scale, soft cap and dropout of the part."""
        return attend(
            query,
            key,
            value,
            mask,
            scale=self.scale,
            soft_cap=self.soft_cap,
            scores=scores,
            dropout=self.dropout if self.training else 0.0,
            max_scores=self.max_scores,
        )

    def probabilities(
        self, x: Tensor, context: Context, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """What `forward` weighs values with, in float32: [B, T, D] -> [B, N, T, S]."""
        prepared = prepared or self.prepare(context, state)
        query, key, _ = self._query_key_value(x, context, state, prepared)
        scores = self._scores(query, key, prepared)
        return attention_probabilities(
            query.float(), key.float(), prepared.mask, self.scale, scores, self.soft_cap
        )

    def _query_key_value(
        self, x: Tensor, context: Context, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Turned queries [B, N, T, H] and keys, and values [B, K, S, H], of one precision."""
        query = self.positions.turn(self._queries(x), prepared.positions)
        seen = x[:, : context.num_keys] if context.seen is None else context.seen
        key, value = self.project(seen)
        key = self.positions.turn(key, prepared.positions)
        if context.span is not None and state is not None:
            key, value = state.append(context.span, key, value)
        return query.to(key.dtype), key, value  # a cache may be more precise than the model

    def _scores(self, query: Tensor, key: Tensor, prepared: Prepared) -> Tensor | None:
        ready = self.positions.prepare_layer(prepared.positions, self.query, self.key)
        return self.positions.scores(query, key, ready)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of [B, S, D]: two tensors [B, K, S, H]."""
        return self.normed(self.key_norm, self.key(x)), self._heads(self.value(x))

    def _queries(self, x: Tensor) -> Tensor:
        return self.normed(self.query_norm, self.query(x))

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Heads [B, N, T, H] of [B, T, N H], normalised in the precision of the norm's weights."""
        x, weight = self._heads(x), next(norm.parameters(), x)
        return to_autocast_dtype(norm(x.to(weight.dtype)))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, N, T, H]


class CrossAttention(AttentionMixer):
    """Attention to an encoder's output, whose keys and values a cache remembers."""

    def prepare(
        self, context: Context, state: Any = None, table: nn.Module | None = None
    ) -> Prepared:
        """The mask of the encoder's real positions; `state` is a SourceState."""
        encoder = context.encoder
        if encoder is None or (encoder.hidden is None and state is None):
            raise SpecError(
                "cross-attention needs the encoder's output: give Context.encoder, or a cache "
                "after cache.remember."
            )
        if encoder.hidden is not None:
            length = encoder.hidden.shape[1]
        else:
            length = state.tensors[0].shape[2]
        keys = Context.of_length(length, context.positions.device, real=encoder.real)
        queries = Context(context.positions, context.columns, custom=encoder.custom)
        return Prepared(Mask(queries, keys))

    def _query_key_value(
        self, x: Tensor, context: Context, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        encoder = context.encoder
        assert encoder is not None  # `prepare` has checked it
        if encoder.hidden is not None:
            key, value = self.project(encoder.hidden)
        else:
            key, value = state.read(context.span)
        return self._queries(x).to(key.dtype), key, value
