"""Performer: attention whose softmax is estimated by random features."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.mixers import Mixer
from trivium.spec.part import Count, Positive

CHUNK = 128
"""Tokens that the causal form reads at a time."""


class Performer(Mixer):
    """FAVOR+: linear attention by positive orthogonal random features (Choromanski et al. 2020).

    More features estimate softmax attention better; the paper takes about H ln H of them, 256 of
    heads of 64. `eps` is added to each, as in the authors' code.

    With `redraw` every pass in training draws features of its own, so that a model relies on none
    of them (section 4.2, whose experiments draw after so many steps). The noise is that of dropout:
    it follows from the seed and the step. Other passes have the features of the start, and so have
    rows that go on with a state, which is a sum over features.
    """

    packs: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["performer"] = "performer"
    num_heads: Count
    head_dim: Count
    num_features: Count = 256
    eps: Positive = 1e-4
    redraw: bool = False

    def flops(self, attended: float) -> float:
        """24 N H M for M features of queries and keys, their sums and what is read of these.

        What the causal form computes inside of its chunks is not counted.
        """
        return 24.0 * self.num_heads * self.head_dim * self.num_features

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Of the causal form: features twice, weights in a chunk twice, and a sum of each."""
        chunk, width = min(length, CHUNK), self.head_dim + 1
        sums = self.num_features * width // chunk
        return self.num_heads * (4 * self.num_features + 2 * chunk + sums + 6 * width)
