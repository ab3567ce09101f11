"""Performer attention (FAVOR+): linear complexity, estimated with random features.

Shape letters: B batch, T positions, C positions of a chunk, D width, N heads, H head_dim,
M features, V = H + 1: values have a 1 appended, so that the last output is the sum of the weights.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.mask import masked_score
from trivium.nn.mixers import Mixer, ProjectingMixer
from trivium.nn.part import Count, Positive
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State

CHUNK = 128
"""The number of tokens per chunk in causal attention."""


class Performer(Mixer):
    """FAVOR+: linear attention with positive orthogonal random features (Choromanski et al. 2020).

    More features estimate softmax attention better. The paper uses about H ln H features, 256 for
    H = 64. `eps` is added to each feature, as in the authors' code.

    With `redraw` every training step samples new random features, so that the model does not rely
    on particular features (section 4.2, where new features are sampled every few steps). Like
    dropout, they depend on the seed and the step. Evaluation uses the initial features. So does
    training with a state carried from row to row, because the state depends on the features.
    """

    supports_packing: ClassVar[bool] = False
    carries_state: ClassVar[bool] = True
    kind: Literal["performer"] = "performer"
    num_heads: Count
    head_dim: Count
    num_features: Count = 256
    eps: Positive = 1e-4
    redraw: bool = False

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token, forward and backward, of linear attention: 24 N H M.

        They are 6 N H M each for query features, key features, the sums S and the products q^T S.
        In causal attention, attention inside chunks is not counted. See `Mixer.flops`.
        """
        return 24.0 * self.num_heads * self.head_dim * self.num_features

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept by causal attention for backward.

        The features of queries and keys, and the attention weights inside a chunk, count twice.
        Each chunk also keeps its sums S. Each token also keeps six vectors of H + 1 elements per
        head. Bidirectional attention is counted like causal attention.
        """
        chunk, width = min(length, CHUNK), self.head_dim + 1
        sums = self.num_features * width // chunk
        return self.num_heads * (4 * self.num_features + 2 * chunk + sums + 6 * width)

    def build(self, d_model: int, **options: Any) -> PerformerModule:
        """See `Mixer.build`."""
        return PerformerModule(self, d_model, **options)


class PerformerModule(ProjectingMixer):
    """Linear attention with positive random features (FAVOR+).

    Bidirectional: head = phi(Q) (phi(K)^T V) / phi(Q) (phi(K)^T 1). Causal:

        S_t = S_t-1 + phi(k_t) [v_t, 1]^T      [y_t z_t, z_t] = phi(q_t)^T S_t

    phi is `positive_features` of queries and keys times H^-1/4. The heads of a layer share the
    random features, which are sampled once and saved in checkpoints. With `redraw` new features are
    sampled in training. Attention weights have no dropout.

    To avoid overflow, the features of a key are divided by the largest one, e^shift. The sums S_t
    are divided by e^c_t, where c_t is the largest shift so far, as in online softmax. These factors
    cancel in the quotient y_t, and y_t does not depend on later keys.

    Source: Choromanski et al. 2020, equations 4 to 7 and appendix B.1.
    """

    features: Tensor

    def __init__(self, part: Performer, width: int, **options: Any) -> None:
        super().__init__(part, width, **options)
        self.register_buffer("features", torch.empty(part.num_features, part.head_dim))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the random features with `orthogonal_features`."""
        part = self.part
        self.features.copy_(orthogonal_features(part.num_features, part.head_dim, generator))

    def prepare(
        self, sequence: SequenceInfo, state: State | None = None, table: nn.Module | None = None
    ) -> Tensor:
        """Return the padding mask of the keys: bool [1 or B, 1, 1 or T, 1], False for padding.

        See `MixerModule.prepare`. Raises SpecError for mask conditions other than causality and
        padding.
        """
        self.check_mask_conditions(sequence, supported={"causal", "padding"})
        is_token = sequence.state_mask
        if is_token is None:
            is_token = torch.ones(1, 1, device=sequence.columns.device)
        return is_token.bool()[:, None, :, None]

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty state of fixed size: the sums S and their scale c, in float32 or wider.

        S [slots, N, M, V] is divided by e^c, with c [slots, N, 1, 1]. `length` is ignored.
        """
        part, dtype = self.part, torch.promote_types(like.dtype, torch.float32)
        sums = like.new_zeros(
            slots, part.num_heads, part.num_features, part.head_dim + 1, dtype=dtype
        )
        return State(sums, sums.new_zeros(slots, part.num_heads, 1, 1))

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: State | None = None, prepared: Any = None
    ) -> Tensor:
        """Return the attention output: [B, T, D] -> [B, T, D]. Updates `state` in place.

        See `MixerModule.forward`.
        """
        is_token = self.prepare(sequence) if prepared is None else prepared
        query, key, value = self.split_heads(self.query(x), self.key(x), self.value(x))
        past_sums = None
        if sequence.cache_slice is not None and state is not None:
            sums, shift = state.read(sequence.cache_slice)
            is_new = sequence.columns[:, :1, None, None] == 0
            past_sums = sums, shift.masked_fill(is_new, masked_score(shift.dtype))
            query, key, value = (each.to(sums.dtype) for each in (query, key, value))
        part, features = self.part, self.features
        if part.redraw and self.training and past_sums is None:
            features = orthogonal_features(part.num_features, part.head_dim, device=x.device)
        scale, projections = part.head_dim**-0.25, features.to(query.dtype)
        query, _ = positive_features(query * scale, projections, self.part.eps)
        key, shift = positive_features(key * scale, projections, self.part.eps)
        key, shift = key.where(is_token, 0.0), shift.where(is_token, masked_score(shift.dtype))
        value = F.pad(value, (0, 1), value=1.0)
        if sequence.causal:
            mixed, past_sums = causal_linear_attention(query, key, value, shift, past_sums)
            if sequence.cache_slice is not None and state is not None:
                state.write(sequence.cache_slice, *past_sums)
        else:
            mixed = linear_attention(query, key, value, shift)
        # A sum of weights is below eps only if there are no keys; then the sum is 0.
        y = mixed[..., :-1] / mixed[..., -1:].clamp(min=self.part.eps)
        return self.output(y.to(x.dtype).transpose(1, 2).flatten(2))


def orthogonal_features(
    num_features: int,
    width: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Return the random vectors w of the features as the rows of a matrix [M, H].

    Each row is distributed like a standard normal vector. In each block of H rows, the rows are
    orthogonal. Source: Choromanski et al. 2020, section 2.4.

    Args:
        num_features: M, the number of features.
        width: H, the head dimension.
        generator: the random generator; None: PyTorch's default generator.
        device: the device of the result.
    """
    blocks = []
    for _ in range(0, num_features, width):
        # With the signs of R's diagonal Q is uniform among rotations and reflections.
        q, r = torch.linalg.qr(torch.randn(width, width, generator=generator, device=device))
        blocks.append(q * r.diagonal().sign())
    lengths = torch.randn(num_features, width, generator=generator, device=device)
    return lengths.norm(dim=1, keepdim=True) * torch.cat(blocks)[:num_features]


def positive_features(x: Tensor, projections: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the random features of x, exp(w^T x - |x|^2 / 2 - shift) + eps for all w, and shift.

    The shift is the largest exponent over all w; it prevents overflow. For eps = 0, the features
    estimate exp(x^T y) without bias: multiply the features of x and y, take the mean over w, and
    multiply by e^(shift_x + shift_y). Source: Choromanski et al. 2020, lemma 1.

    Shape: x [..., H]; `projections` [M, H], whose rows are the vectors w -> [..., M], [..., 1].
    """
    exponents = x @ projections.mT - x.square().sum(-1, keepdim=True) / 2
    largest = exponents.detach().amax(-1, keepdim=True)
    return (exponents - largest).exp() + eps, largest


def linear_attention(query: Tensor, key: Tensor, value: Tensor, shift: Tensor) -> Tensor:
    """Return unnormalised bidirectional linear attention, phi(Q) (phi(K)^T V).

    The result has an extra factor per head, which cancels when the caller divides the output by
    the sum of the attention weights.

    Shape: features of queries and keys [B, N, T, M], values [B, N, T, V], shifts of the keys
    [B, N, T, 1] -> [B, N, T, V].
    """
    return query @ (key.mT @ (value * (shift - shift.amax(2, keepdim=True)).exp()))


def causal_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shift: Tensor,
    past_sums: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Compute unnormalised causal linear attention, in chunks of `CHUNK` tokens.

    Attention weights are computed only between tokens of the same chunk. Earlier chunks are
    summarised by the sums S [B, N, M, V], which are divided by e^c, and by c [B, N, 1, 1].

    Args:
        query: the features of the queries [B, N, T, M].
        key: the features of the keys [B, N, T, M].
        value: the values [B, N, T, V].
        shift: the shifts of the keys [B, N, T, 1] (see `positive_features`).
        past_sums: S and c of earlier tokens; None: no earlier tokens.

    Returns:
        The output [B, N, T, V], and the pair of S and c after the last token.
    """
    if past_sums is None:
        sums = query.new_zeros(*query.shape[:2], query.shape[3], value.shape[3])
        past_sums = sums, shift.new_full((*query.shape[:2], 1, 1), masked_score(shift.dtype))
    sums, before = past_sums
    mixed = []
    for q, k, v, s in zip(*(each.split(CHUNK, 2) for each in (query, key, value, shift))):
        largest = torch.maximum(before, s.cummax(2).values)  # c_t [B, N, C, 1]
        # For keys after t, which tril removes, s may be greater than c_t.
        weights = (q @ k.mT * (s.mT - largest).clamp(max=0.0).exp()).tril()
        mixed.append(weights @ v + (before - largest).exp() * (q @ sums))
        after = largest[:, :, -1:]
        sums = (before - after).exp() * sums + k.mT @ (v * (s - after).exp())
        before = after
    return torch.cat(mixed, 2), (sums, before)
