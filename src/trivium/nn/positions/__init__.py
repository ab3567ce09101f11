"""Kinds of position encodings.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from trivium.choice import Choice, import_submodules
from trivium.nn.mask import Bias
from trivium.nn.part import Part, PartModule
from trivium.nn.sequence_info import SequenceInfo


class AbsolutePositions(Choice, Part):
    """Spec of an absolute position encoding: vectors added to the token embeddings."""

    fills_blanks: ClassVar[bool] = False
    """Whether position ids also tell which blank each generated token fills (GLM's infilling)."""
    max_length: Any
    """The maximum number of positions; None: unlimited."""

    def build(self, width: int) -> PartModule:
        """Return the module, which maps position ids, int64 [B, T], to vectors [B, T, width]."""
        raise NotImplementedError


class Positions(Choice, Part):
    """Spec of a position encoding inside attention, such as RoPE or ALiBi."""

    has_scores: ClassVar[bool] = False
    """Whether the position encoding adds a term to the attention scores."""
    supports_tp: ClassVar[bool] = False
    """Whether tensor parallelism can divide the heads of the position encoding among processes."""
    fills_blanks: ClassVar[bool] = False
    """Whether position ids also tell which blank each generated token fills (ChatGLM-6B)."""

    num_token_types: ClassVar[int] = 0
    """The number of token types (such as sentence A and B) that scores depend on; 0: none."""

    @property
    def recompute_length(self) -> int | None:
        """The length beyond which all cached keys of a text have to be recomputed; None: never."""
        return None

    @property
    def num_dot_products(self) -> int:
        """The number of dot products summed in one attention score; 1 is query times key alone."""
        return 1

    def unsupported_reason(self, head_dim: int) -> str:
        """Return the reason why this encoding does not support `head_dim`, or "" if it does."""
        return ""

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """Return the training FLOPs per token that the position encoding adds to attention.

        They are the FLOPs of the forward and the backward pass. `attended` is the average number
        of positions that a token attends to.
        """
        return 0.0

    def activation_numel(self, length: int, num_heads: int, head_dim: int) -> int:
        """Return the activation elements per token that the encoding adds to attention.

        It is the number of elements kept for the backward pass. `length` is the number of tokens in
        a row.
        """
        return 0

    def build(self, attention: Any, d_model: int) -> PositionsModule:
        """Return the module for `attention`, an `Attention` spec in a model of width d_model."""
        raise NotImplementedError


class PositionsModule(PartModule):
    """Module of a position encoding inside attention; the base class changes nothing.

    Args:
        attention: the `Attention` spec that contains the position encoding.
        width: the width of the hidden states, D.
    """

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__()
        self.attention = attention
        self.heads = slice(None)  # the heads of this process under tensor parallelism

    def new_table(self) -> nn.Module | None:
        """Return None: no weights are shared among layers. See `MixerModule.new_table`."""
        return None

    def prepare(self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None) -> Any:
        """Return values computed once per forward pass for all layers, such as RoPE's cosines.

        The base class returns None. `sequence` describes the queries, `keys` the keys, and `table`
        contains the weights that layers share. See `MixerModule.prepare`.
        """
        return None

    def apply_rotary(self, x: Tensor, prepared: Any) -> Tensor:
        """Apply RoPE, if used, to queries, or to keys before caching: [B, N, T, H], same shape."""
        return x

    def bias(self, prepared: Any) -> Bias | None:
        """Return a function that computes the position bias, equal in all layers, or None."""
        return None

    def project_positions(self, prepared: Any, query: nn.Linear, key: nn.Linear) -> Any:
        """Apply the layer's query and key projections to the position data of `prepare`.

        Returns the argument `prepared` of `scores`. The base class changes nothing.
        """
        return prepared

    def scores(self, query: Tensor, key: Tensor, prepared: Any) -> Tensor | None:
        """Return the position term of the layer's attention scores, [1 or B, N, T, S], or None.

        Shape: query [B, N, T, H], key [B, K, S, H], both after `apply_rotary`.
        """
        return None


def distances(sequence: SequenceInfo, keys: SequenceInfo) -> Tensor:
    """Return the index of each key minus the index of each query: int64 [1 or B, T, S].

    Indices count from the start of the row. Their difference is the same if padding or other
    packed documents come earlier in the row.
    """
    return keys.columns[:, None, :] - sequence.columns[..., None]


import_submodules(__name__, __path__)
