"""The selective state space model of Mamba."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.feed_forwards.feed_forward import Activation
from trivium.spec.mixers import Mixer
from trivium.spec.part import Count

SEGMENT = 64
"""Positions whose states are kept in memory together; backward computes them again."""


class Mamba(Mixer):
    """A state that the tokens themselves let decay and fill (Gu and Dao 2023, section 3).

    `d_inner` channels, in the paper twice d_model (`expand`), each with a state of `d_state`
    numbers; before them a convolution over `d_conv` positions. Step sizes are of rank `dt_rank`, in
    the paper d_model / 16. `bias` is that of the projections into and out of the channels.
    """

    encodes: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["mamba"] = "mamba"
    d_inner: Count
    dt_rank: Count
    d_state: Count = 16
    d_conv: Count = 4
    bias: bool = False
    conv_bias: bool = True
    activation: Activation = "silu"

    def flops(self, attended: float) -> float:
        """Of the convolution, and about 9 a number of the state; forward, again, backward twice."""
        return self.d_inner * (6.0 * self.d_conv + 4 * 9.0 * self.d_state)

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Inputs, convolved before and after the activation, steps, gate, output of every channel;
        B, C and low-rank steps; the state before every segment but the first, which is float32
        in any precision."""
        channels = 6 * self.d_inner + self.dt_rank + 2 * self.d_state
        states = (length - 1) // SEGMENT * self.d_inner * self.d_state * 4 // item
        return channels + states // length
