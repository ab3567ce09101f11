"""Multi-head attention: self-attention and cross-attention.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.attend import MAX_EAGER_SCORES, attend, attention_probabilities
from trivium.nn.flex import MIN_HEAD_DIM, FlexMask
from trivium.nn.fused_linear import FusedLinear
from trivium.nn.mask import Mask
from trivium.nn.mixers import TP_PLAN, Mixer, MixerModule
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Count, Positive, to_autocast_dtype
from trivium.nn.patterns import Pattern
from trivium.nn.positions import Positions, PositionsModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import KVCache, RollingKVCache, State


class Attention(Mixer):
    """Multi-head attention, or grouped-query attention if `num_kv_heads` < `num_heads`.

    Scores are multiplied by `scale`. The default is head_dim^-0.5, or ((1 + n) head_dim)^-0.5 if
    the position encoding adds n dot products to Q K^T. With `qk_norm` the queries and keys of every
    head are normalised (Henry et al. 2020; Qwen3), with weights that all heads share. With
    `qk_norm_over` "each-head" every head has its own weights (StableLM). With "all-heads" the norm
    is applied to the concatenation of all heads (OLMo 2). RoPE is applied after the norm, or before
    the norm with `qk_norm_place` "after-rotary". With `soft_cap` c, a score s becomes c tanh(s / c)
    before the position bias is added (Gemma 2).

    With `qkv_clip` c, the elements of queries, keys and values are limited to [-c, c] before norm
    and RoPE (OLMo 1). With `sinks`, every head has a learned score, the attention sink, which takes
    part in the softmax as if there were one more key, whose value is 0 (gpt-oss).
    """

    kind: Literal["attention"] = "attention"
    num_heads: Count
    head_dim: Count
    num_kv_heads: Count | None = None
    bias: bool = True
    key_bias: bool | None = None
    output_bias: bool | None = None
    scale: Positive | None = None
    qk_norm: SerializeAsAny[Norm] | None = None
    qk_norm_over: Literal["all-heads", "each-head"] | None = None
    qk_norm_place: Literal["after-rotary"] | None = None
    soft_cap: Positive | None = None
    qkv_clip: Positive | None = None
    sinks: bool = False
    pattern: SerializeAsAny[Pattern] | None = None
    positions: SerializeAsAny[Positions] | None = None

    @property
    def kv_heads(self) -> int:
        """The number of key-value heads: `num_kv_heads`, or `num_heads` if unset."""
        return self.num_kv_heads or self.num_heads

    @property
    def has_key_bias(self) -> bool:
        """Whether the key projection has a bias: `key_bias`, or `bias` if unset."""
        return self.bias if self.key_bias is None else self.key_bias

    @property
    def has_output_bias(self) -> bool:
        """Whether the output projection has a bias: `output_bias`, or `bias` if unset."""
        return self.bias if self.output_bias is None else self.output_bias

    @property
    def score_scale(self) -> float:
        """The factor that attention scores are multiplied by: `scale`, or a default if unset.

        The default is (num_dot_products * head_dim)^-0.5, where `num_dot_products` is 1 plus the
        number of dot products that the position encoding adds to Q K^T.
        """
        num_dot_products = self.positions.num_dot_products if self.positions else 1
        return (num_dot_products * self.head_dim) ** -0.5 if self.scale is None else self.scale

    @property
    def cross(self) -> Attention:
        """The spec of cross-attention in the same block: no position encoding, no pattern.

        All other fields are the same as here.
        """
        return self.replace(pattern=None, positions=None, sinks=False)

    def check(self) -> None:
        """Raise SpecError if the number of heads does not fit the other fields.

        The other fields are the number of key-value heads and the attention pattern. Also raises
        SpecError for a position encoding that does not support the head dimension, or that is not
        supported by attention with a memory (Transformer-XL).
        """
        if self.num_heads % self.kv_heads:
            raise SpecError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.kv_heads}: "
                "every key-value head serves the same number of query heads."
            )
        num_patterns = 1 if self.pattern is None else len(self.pattern.head_patterns)
        if num_patterns not in (1, self.num_heads):
            raise SpecError(
                f"num_heads={self.num_heads}, and the pattern is of {num_patterns} heads: give "
                "one pattern for every head."
            )
        if self.positions and (reason := self.positions.unsupported_reason(self.head_dim)):
            raise SpecError(f"head_dim={self.head_dim}: {reason}")
        if self.kind != "attention" and (self.sinks or self.qkv_clip is not None):
            raise SpecError(
                f'a mixer of kind "{self.kind}" has no attention sinks and no qkv_clip: leave them '
                "out."
            )
        if self.carries_state and self.positions and not self.positions.has_scores:
            raise SpecError(
                f'positions of kind "{self.positions.kind}" are in the keys of attention, which '
                f"{self.kind} makes anew of what it remembers: give it TransformerXLPositions()."
            )

    @property
    def sharded_fields(self) -> dict[str, int]:
        """The numbers of heads, which tensor parallelism shards (see `Mixer.sharded_fields`).

        Empty with `qk_norm` or `sinks`, with a pattern per head, and with a position encoding that
        does not support tensor parallelism.
        """
        if self.qk_norm or self.sinks or (self.positions and not self.positions.supports_tp):
            return {}
        if self.pattern and len(self.pattern.head_patterns) > 1:
            return {}
        return {"num_heads": self.num_heads, "num_kv_heads": self.kv_heads}

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token, forward and backward, of scores and weighted values.

        They are 12 N H per attended position, plus the FLOPs of the position encoding. See
        `Mixer.flops`.
        """
        heads = self.num_heads, self.head_dim
        own = self.positions.flops(attended, *heads) if self.positions else 0.0
        return 12.0 * attended * self.num_heads * self.head_dim + own

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        Queries, keys, values and outputs are always kept. Attention probabilities are kept only in
        eager attention, which is used on a CPU, for a soft cap and for sinks. They count three
        times with dropout. A soft cap also keeps the scores, query and key norms keep their inputs,
        and the position encoding may keep more. See `Mixer.activation_numel`.
        """
        heads = self.num_heads * self.head_dim
        explicit = on_cpu or self.soft_cap is not None or self.sinks
        keys = heads if explicit else self.kv_heads * self.head_dim
        for_score = (3 if dropout else 1) + (self.soft_cap is not None) if explicit else 0
        scores = self.num_heads * length * for_score
        norm_inputs = heads + self.kv_heads * self.head_dim if self.qk_norm else 0
        own = 0
        if self.positions:
            own = self.positions.activation_numel(length, self.num_heads, self.head_dim)
        return 2 * heads + 2 * keys + norm_inputs + scores + own

    def build(self, d_model: int, **options: Any) -> AttentionModule:
        """See `Mixer.build`."""
        return AttentionModule(self, d_model, **options)


@dataclass(frozen=True)
class Prepared:
    """The values that all attention layers with the same spec share in a forward pass.

    Args:
        mask: the attention mask.
        positions: the result of `PositionsModule.prepare`, such as the cosines and sines of RoPE.
        source: the hidden states [B, T, D] from which keys and values are computed; None: the input
            of the layer. Only DeBERTa's enhanced mask decoder sets `source`.
    """

    mask: Mask
    positions: Any = None
    source: Tensor | None = None


class AttentionModule(MixerModule):
    """MultiHead(x) = Concat(softmax(Q_n K_n^T * scale) V_n) W_O.

    Source: Vaswani et al. 2017, section 3.2, and for grouped-query attention Ainslie et al. 2023.
    The docstring of `Attention` defines the scale and the optional norms and soft cap. In eager
    attention without a soft cap, all layers of a stack together keep at most `MAX_EAGER_SCORES`
    attention scores for the backward pass.
    """

    parallel: ClassVar[Mapping[str, str]] = TP_PLAN

    def __init__(
        self, part: Attention, width: int, dropout: float = 0.0, num_layers: int = 1
    ) -> None:
        super().__init__(part, width)
        self.part, self.head_dim, self.dropout = part, part.head_dim, dropout
        self.soft_cap = part.soft_cap
        self.scale = part.score_scale
        self.max_scores = MAX_EAGER_SCORES // num_layers
        self.uses_flex = False  # see `LanguageModule.use_flex_attention`
        queries, keys = part.num_heads * part.head_dim, part.kv_heads * part.head_dim
        self.query = nn.Linear(width, queries, bias=part.bias)
        self.key = nn.Linear(width, keys, bias=part.has_key_bias)
        self.value = nn.Linear(width, keys, bias=part.bias)
        self.output = nn.Linear(queries, width, bias=part.has_output_bias)
        self.qkv: FusedLinear | None = None  # query, key and value, fused for decoding
        self.query_norm = _build_qk_norm(part, part.num_heads)
        self.key_norm = _build_qk_norm(part, part.kv_heads)
        self.sinks = nn.Parameter(torch.zeros(part.num_heads)) if part.sinks else None
        self.positions: PositionsModule = (
            part.positions.build(part, width) if part.positions else PositionsModule(part, width)
        )

    @property
    def supports_flex(self) -> bool:
        """Whether FlexAttention supports the layer.

        It supports neither attention dropout, nor narrow heads, nor attention sinks, nor a position
        encoding that computes scores from the queries and keys of the layer.
        """
        has_scores = type(self.positions).scores is not PositionsModule.scores
        is_plain = self.dropout == 0.0 and self.sinks is None and not has_scores
        return is_plain and self.head_dim >= MIN_HEAD_DIM

    @property
    def table_key(self) -> Hashable:
        """The position encoding and the number of heads: layers where both are equal share weights.

        See `MixerModule.table_key`.
        """
        return self.part.positions, self.part.num_heads

    def new_table(self) -> nn.Module | None:
        """Return the weights of the position encoding that layers share, or None.

        See `MixerModule.new_table`.
        """
        return self.positions.new_table()

    def prepare(
        self, sequence: SequenceInfo, state: Any = None, table: nn.Module | None = None
    ) -> Prepared:
        """Return the attention mask, which includes the position bias, and the position data.

        Position data are values computed from the positions, such as the cosines and sines of
        RoPE. The keys are the tokens of the forward pass, or all tokens in the cache. See
        `MixerModule.prepare`.
        """
        keys = sequence.keys
        if sequence.cache_slice is not None and state is not None:
            columns = state.columns(sequence.cache_slice, sequence.columns)
            keys = SequenceInfo(columns, columns)
        return self.prepare_for_keys(sequence, keys, table)

    def prepare_for_keys(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> Prepared:
        """Return the attention mask and the position data for given queries and keys.

        Position data are values computed from the positions, such as the cosines and sines of
        RoPE.

        Args:
            sequence: the metadata of the query tokens.
            keys: the metadata of the key tokens.
            table: the weights that the layers share (`new_table`); None: no such weights.
        """
        ready = self.positions.prepare(sequence, keys, table)
        uses_flex = self.uses_flex and sequence.cache_slice is None
        mask = (FlexMask if uses_flex else Mask)(
            sequence,
            keys,
            self.get_pattern(sequence),
            self.positions.bias(ready),
            num_heads=self.part.num_heads,
            eager=self.soft_cap is not None or self.sinks is not None,
            always=self.exempt_keys(sequence),
        )
        return Prepared(mask, ready)

    def get_pattern(self, sequence: SequenceInfo) -> Pattern | None:
        """Return the attention pattern (such as a sliding window) of a forward pass, or None."""
        return self.part.pattern

    def exempt_keys(self, sequence: SequenceInfo) -> Tensor | None:
        """Return which key tokens are exempt from the attention pattern, bool [B, T].

        These keys are visible to queries outside of their sliding window, for example. None: no
        key is exempt.
        """
        return None

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty KV cache. For a short sliding window the cache is a ring buffer.

        The ring buffer is used only if it needs less memory than keys and values of `length`
        tokens.
        """
        shape = self.part.kv_heads, self.head_dim, like
        reach = None if self.part.pattern is None else self.part.pattern.reach
        if reach is not None and reach + RollingKVCache.SPARE < length:
            return RollingKVCache(slots, reach, *shape)
        return KVCache(slots, length, *shape)

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """Return the attention output: [B, T, D] -> [B, T, D]. Appends to the KV cache `state`."""
        if sequence.columns.shape[1] != x.shape[1]:
            raise SpecError(
                f"x has {x.shape[1]} tokens, and its sequence is of {sequence.columns.shape[1]}: "
                "give SequenceInfo.of_length(T) of as many."
            )
        mixed = self.head_outputs(x, sequence, state, prepared or self.prepare(sequence, state))
        return self.output(mixed.to(x.dtype).transpose(1, 2).flatten(2))

    def head_outputs(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> Tensor:
        """Return the head outputs before the output projection: [B, T, D] -> [B, N, T, H]."""
        query, key, value = self._compute_qkv(x, sequence, state, prepared)
        scores = self._position_scores(query, key, prepared)
        return self.attend_heads(query, key, value, prepared.mask, scores)

    def attend_heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scores: Tensor | None = None
    ) -> Tensor:
        """Return the attention output of all heads, [B, N, T, V], without the output projection.

        Calls `nn.attend.attend` with the scale, the soft cap and the dropout of this module.
        """
        return attend(
            query,
            key,
            value,
            mask,
            scale=self.scale,
            soft_cap=self.soft_cap,
            scores=scores,
            sinks=self.sinks,
            dropout=self.dropout if self.training else 0.0,
            max_scores=self.max_scores,
        )

    def probabilities(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """Return the attention probabilities [B, N, T, S] in float32, given `forward`'s arguments.

        Like `forward`, this appends to the KV cache `state`.
        """
        prepared = prepared or self.prepare(sequence, state)
        query, key, _ = self._compute_qkv(x, sequence, state, prepared)
        scores = self._position_scores(query, key, prepared)
        return attention_probabilities(
            query.float(), key.float(), prepared.mask, self.scale, scores, self.soft_cap, self.sinks
        )

    def _compute_qkv(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, N, T, H], keys [B, K, S, H] and values [B, K, S, H].

        QK norm and RoPE have been applied to queries and keys, if the spec has them. Keys and
        values include those in the cache. Queries have the dtype of the keys.
        """
        if self.qkv is not None:
            query, key, value = self.qkv(x)
        else:
            query, source = self.query(x), prepared.source
            key_value_states = x[:, : sequence.num_keys] if source is None else source
            key, value = self.key(key_value_states), self.value(key_value_states)
        if (limit := self.part.qkv_clip) is not None:
            query, key, value = (x.clamp(-limit, limit) for x in (query, key, value))
        query = self._split_and_rotate(self.query_norm, query, prepared.positions)
        key = self._split_and_rotate(self.key_norm, key, prepared.positions)
        key, value = sequence.gather_keys(key), sequence.gather_keys(self._split_heads(value))
        if sequence.cache_slice is not None and state is not None:
            key, value = state.append(sequence.cache_slice, key, value)
        return query.to(key.dtype), key, value  # a cache may be more precise than the model

    def _position_scores(self, query: Tensor, key: Tensor, prepared: Prepared) -> Tensor | None:
        """Return the term that the position encoding adds to the scores, [1 or B, N, T, S].

        Unlike the position bias in the mask, this term depends on the queries and keys. None if
        the position encoding has no such term.
        """
        ready = self.positions.project_positions(prepared.positions, self.query, self.key)
        return self.positions.scores(query, key, ready)

    def fuse_projections(self) -> None:
        """Compute query, key and value in one matmul from now on. Only for decoding."""
        self.qkv = FusedLinear.fuse(self.query, self.key, self.value)

    def project_kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, K, S, H] of hidden states [B, S, D], split into heads.

        The key norm and `qkv_clip` have been applied, if there are any. RoPE has not been applied.
        """
        key, value = self.key(x), self.value(x)
        if (limit := self.part.qkv_clip) is not None:
            key, value = key.clamp(-limit, limit), value.clamp(-limit, limit)
        return self.split_and_norm(self.key_norm, key), self._split_heads(value)

    def _split_and_rotate(self, norm: nn.Module, x: Tensor, positions: Any) -> Tensor:
        """Split queries or keys into heads, apply QK norm and RoPE: [B, T, N H] -> [B, N, T, H].

        The order of norm and RoPE is set by `qk_norm_place`.
        """
        if self.part.qk_norm_place is None:
            return self.positions.apply_rotary(self.split_and_norm(norm, x), positions)
        x = self.positions.apply_rotary(self._split_heads(x), positions)
        return self.split_and_norm(norm, x.transpose(1, 2).flatten(2))

    def split_and_norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Split queries or keys into heads and apply QK norm: [B, T, N H] -> [B, N, T, H].

        The norm is computed in the dtype of its weights. The result has autocast's dtype if
        autocast is on.
        """
        whole, weight = self.part.qk_norm_over == "all-heads", next(norm.parameters(), x)
        x = norm((x if whole else self._split_heads(x)).to(weight.dtype))
        return to_autocast_dtype(self._split_heads(x) if whole else x)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Split a projection into heads: [B, T, N H] -> [B, N, T, H]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class NormPerHead(nn.Module):
    """A norm with its own weights for every head: [B, N, T, H] -> [B, N, T, H] (StableLM)."""

    def __init__(self, norm: Norm, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm.build(head_dim) for _ in range(num_heads))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize every head over its last axis."""
        return torch.stack([norm(head) for norm, head in zip(self.norms, x.unbind(1))], 1)


def _build_qk_norm(part: Attention, num_heads: int) -> nn.Module:
    """Return the norm of queries or keys with `num_heads` heads, or `nn.Identity`."""
    if part.qk_norm is not None and part.qk_norm_over == "each-head":
        return NormPerHead(part.qk_norm, num_heads, part.head_dim)
    whole = part.qk_norm_over == "all-heads"
    return build_norm(part.qk_norm, num_heads * part.head_dim if whole else part.head_dim)


class CrossAttention(AttentionModule):
    """Cross-attention to an encoder's output.

    In decoding, the keys and values of the encoder's output are computed once and cached.
    """

    def prepare(
        self, sequence: SequenceInfo, state: Any = None, table: nn.Module | None = None
    ) -> Prepared:
        """Return the attention mask between the decoder's tokens and the encoder's positions.

        `state` is the `CrossAttentionCache` of the layer. See `MixerModule.prepare`.

        Raises SpecError if neither the encoder's output nor a cache of its keys and values is
        given.
        """
        encoder = sequence.encoder
        if encoder is None or (encoder.hidden is None and state is None):
            raise SpecError(
                "cross-attention needs the encoder's output: give SequenceInfo.encoder, or a cache "
                "after cache.set_encoder_output."
            )
        if encoder.hidden is not None:
            length = encoder.hidden.shape[1]
        else:
            length = state.tensors[0].shape[2]
        keys = SequenceInfo.of_length(length, sequence.positions.device, is_token=encoder.is_token)
        queries = SequenceInfo(sequence.positions, sequence.columns, custom=encoder.custom)
        return Prepared(Mask(queries, keys))

    def _compute_qkv(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the decoder, and the keys and values of the encoder's output.

        If the encoder's output is not given, its keys and values are read from the cache.
        """
        encoder = sequence.encoder
        assert encoder is not None  # `prepare` has checked it
        if encoder.hidden is not None:
            key, value = self.project_kv(encoder.hidden)
        else:
            key, value = state.read(sequence.cache_slice)
        query = self.query(x)
        if (limit := self.part.qkv_clip) is not None:
            query = query.clamp(-limit, limit)
        query = self.split_and_norm(self.query_norm, query)
        return query.to(key.dtype), key, value
