"""Multi-head latent attention: keys and values from one compressed vector per token (DeepSeek).

Shape letters: B batch, T query positions, S key positions, D width, N heads, H head_dim,
R rotary_dim, V value_dim, C kv_rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.attend import MAX_EAGER_SCORES, attend
from trivium.nn.mask import Mask
from trivium.nn.mixers import Mixer, MixerModule
from trivium.nn.mixers.attention import Attention, Prepared
from trivium.nn.norm import Norm, RMSNorm, build_norm
from trivium.nn.part import Count, Positive
from trivium.nn.positions.rotary import Rotary
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import KVCache


class LatentAttention(Mixer):
    """Multi-head latent attention (MLA) with decoupled RoPE (DeepSeek-AI 2024, DeepSeek-V2).

    The keys and values of all heads are computed from one compressed vector of `kv_rank` numbers
    per token, which is stored in the KV cache. With `query_rank` the queries are compressed, too,
    which saves activation memory in training (None: not compressed, as in V2-Lite). `norm`
    normalises the compressed vectors.

    A query or key has `head_dim` dimensions without RoPE and `rotary_dim` dimensions with RoPE. The
    dimensions with RoPE of a key are the same for all heads. Values have `value_dim` dimensions.
    Scores are multiplied by `scale`. The default is (head_dim + rotary_dim)^-0.5; with YaRN it is
    also multiplied by a factor (`YarnScaling.score_factor`).
    """

    kind: Literal["latent-attention"] = "latent-attention"
    num_heads: Count
    head_dim: Count
    rotary_dim: Count
    value_dim: Count
    kv_rank: Count
    query_rank: Count | None = None
    norm: Norm | None = RMSNorm()
    positions: Rotary = Rotary(layout="interleaved")
    scale: Positive | None = None

    @property
    def key_dim(self) -> int:
        """The width of a query or key of one head: `head_dim` (without RoPE) plus `rotary_dim`."""
        return self.head_dim + self.rotary_dim

    @property
    def score_scale(self) -> float:
        """The factor that attention scores are multiplied by: `scale`, or a default if unset.

        The default is key_dim^-0.5, multiplied by `YarnScaling.score_factor` if RoPE uses YaRN.
        """
        scaling = self.positions.scaling
        return self.scale or self.key_dim**-0.5 * (scaling.score_factor if scaling else 1.0)

    def check(self) -> None:
        """Raise SpecError if RoPE, with its scaling, does not support `rotary_dim` dimensions."""
        if reason := self.positions.unsupported_reason(self.rotary_dim):
            raise SpecError(f"rotary_dim={self.rotary_dim}: {reason}")

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token, forward and backward, of scores and weighted values.

        They are 6 N (H + R + V) per attended position. See `Mixer.flops`.
        """
        return 6.0 * attended * self.num_heads * (self.key_dim + self.value_dim)

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        Queries, keys, values, outputs and compressed vectors are always kept. A norm keeps its
        input in float32. On a CPU, where norms have no fused kernel, a norm also keeps the
        normalised input before it is multiplied by the weight. On a CPU, eager attention keeps the
        attention probabilities (three times with dropout) and copies of the values. On a GPU, the
        output of W_UKV is kept as a whole: values and the keys without RoPE.
        """
        scores = self.num_heads * length * (3 if dropout else 1) if on_cpu else 0
        kept = 0 if self.norm is None else (8 if on_cpu else 4) // item
        compressed = (1 + kept) * (self.kv_rank + (self.query_rank or 0)) + self.rotary_dim
        heads = 2 * (self.key_dim + self.value_dim) + (0 if on_cpu else self.head_dim)
        return compressed + self.num_heads * heads + scores

    def build(self, d_model: int, **options: Any) -> LatentAttentionModule:
        """See `Mixer.build`."""
        return LatentAttentionModule(self, d_model, **options)


class LatentCache(KVCache):
    """KV cache of multi-head latent attention, with two tensors shared by all heads.

    They are the compressed vectors [slots, 1, length + 1, C] and the keys with RoPE
    [slots, 1, length + 1, R].
    """

    def __init__(self, slots: int, length: int, part: LatentAttention, like: Tensor) -> None:
        super().__init__(slots, length, 1, part.kv_rank, like)
        self.tensors = (self.tensors[0], like.new_zeros(slots, 1, length + 1, part.rotary_dim))


class LatentAttentionModule(MixerModule):
    """Head n attends with queries [q_n, RoPE(q'_n)], keys [k_n, RoPE(k')] and values v_n.

        [c, k'] = W_DKV x      [k_n, v_n] = W_UKV norm(c)      [q_n, q'_n] = W_UQ norm(W_DQ x)

    `key_value_down` is W_DKV, `key_value_up` W_UKV, `query_down` W_DQ and `query` W_UQ. If
    queries are not compressed, W_UQ is applied to x itself. In the paper each of W_DKV, W_UKV and
    W_UQ is two matrices: W^DKV and W^KR, W^UK and W^UV, W^UQ and W^QR.

    The KV cache stores norm(c) and RoPE(k'), C + R numbers per token and layer. Every decoding step
    recomputes the keys and values of all earlier tokens from norm(c). The paper instead absorbs
    W^UK into W^UQ and W^UV into W^O. The output is the same and a step costs less. However,
    absorption needs dense matrices, which packed and 8-bit layers do not have.

    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1 and appendix C. DeepSeek-V3 uses the same
    attention.
    """

    parallel: ClassVar[Mapping[str, str]] = {"output": "row"}

    def __init__(
        self, part: LatentAttention, width: int, dropout: float = 0.0, num_layers: int = 1
    ) -> None:
        super().__init__(part, width)
        self.dropout, self.max_scores = dropout, MAX_EAGER_SCORES // num_layers
        heads, rank = part.num_heads, part.query_rank
        self.query_down = nn.Linear(width, rank, bias=False) if rank else nn.Identity()
        self.query_norm = build_norm(part.norm, rank) if rank else nn.Identity()
        self.query = nn.Linear(rank or width, heads * part.key_dim, bias=False)
        self.key_value_down = nn.Linear(width, part.kv_rank + part.rotary_dim, bias=False)
        self.key_value_norm = build_norm(part.norm, part.kv_rank)
        self.key_value_up = nn.Linear(
            part.kv_rank, heads * (part.head_dim + part.value_dim), bias=False
        )
        self.output = nn.Linear(heads * part.value_dim, width, bias=False)
        # RoPE is built for heads that consist only of the rotary dimensions.
        rotary = Attention(num_heads=heads, head_dim=part.rotary_dim, positions=part.positions)
        self.positions = part.positions.build(rotary, width)

    def prepare(
        self, sequence: SequenceInfo, state: Any = None, table: nn.Module | None = None
    ) -> Prepared:
        """Return the attention mask, and the cosines and sines of RoPE.

        The keys are the tokens of the forward pass, or all tokens in the cache. See
        `MixerModule.prepare`.
        """
        keys = sequence.keys
        if sequence.cache_slice is not None and state is not None:
            columns = state.columns(sequence.cache_slice, sequence.columns)
            keys = SequenceInfo(columns, columns)
        return Prepared(Mask(sequence, keys), self.positions.prepare(sequence, keys, table))

    def new_state(self, slots: int, length: int, like: Tensor) -> LatentCache:
        """Return an empty KV cache, which stores compressed vectors and keys with RoPE."""
        return LatentCache(slots, length, self.part, like)

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """Return the attention output: [B, T, D] -> [B, T, D]. Appends to the cache `state`."""
        prepared = prepared or self.prepare(sequence, state)
        query = self._project_queries(x, prepared)
        key, value = self._project_kv(x, sequence, state, prepared)
        mixed = attend(
            query,
            key,
            value,
            prepared.mask,
            scale=self.part.score_scale,
            dropout=self.dropout if self.training else 0.0,
            max_scores=self.max_scores,
        )
        return self.output(mixed.to(x.dtype).transpose(1, 2).flatten(2))

    def _project_queries(self, x: Tensor, prepared: Prepared) -> Tensor:
        """Return queries [B, N, T, H + R] with RoPE applied."""
        compressed = _apply_norm(self.query_norm, self.query_down(x))
        plain, rotary = self._split_head_dims(self.query(compressed))
        return torch.cat((plain, self.positions.apply_rotary(rotary, prepared.positions)), -1)

    def _project_kv(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor]:
        """Return keys [B, N, S, H + R], with RoPE applied, and values [B, N, S, V].

        Appends the new tokens to the cache `state`. The keys and values include those of the
        tokens that were in the cache already.
        """
        down = self.key_value_down(x[:, : sequence.num_keys])[:, None]
        compressed, rotary = down.tensor_split((self.part.kv_rank,), -1)
        compressed = _apply_norm(self.key_value_norm, compressed)
        rotary = self.positions.apply_rotary(rotary, prepared.positions)
        if sequence.cache_slice is not None and state is not None:
            compressed, rotary = state.append(sequence.cache_slice, compressed, rotary)
        up = self.key_value_up(compressed[:, 0].to(down.dtype))
        plain, value = self._split_head_dims(up)
        rotary = rotary.to(up.dtype).expand(-1, self.part.num_heads, -1, -1)
        return torch.cat((plain, rotary), -1), value

    def _split_head_dims(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split x into heads, and split the dimensions of each head after the first H.

        Shape: [B, T, N (H + rest)] -> [B, N, T, H] and [B, N, T, rest]. For queries, the rest are
        the dimensions with RoPE. For the output of W_UKV, the rest are the values.
        """
        heads = x.unflatten(-1, (self.part.num_heads, -1)).transpose(1, 2)
        return heads.tensor_split((self.part.head_dim,), -1)


def _apply_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """Return norm(x), computed in the dtype of the norm's weights and cast to the dtype of x."""
    weight = next(norm.parameters(), x)
    return norm(x.to(weight.dtype)).to(x.dtype)
