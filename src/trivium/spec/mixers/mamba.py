"""The selective state space model of Mamba."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.mixers import Mixer
from trivium.spec.part import Count


class Mamba(Mixer):
    """A state that the tokens themselves let decay and fill (Gu and Dao 2023, section 3).

    `d_inner` channels, in the paper twice the width of the model, each with a state of `d_state`
    numbers; `kernel` positions of a convolution before; step sizes of rank `step_rank`, in the
    paper a sixteenth of the width. `bias` is that of the projections into and out of it.
    """

    encodes: ClassVar[bool] = False
    kind: Literal["mamba"] = "mamba"
    d_inner: Count
    d_state: Count = 16
    kernel: Count = 4
    step_rank: Count
    bias: bool = False
    convolution_bias: bool = True
    activation: str = "silu"

    def flops(self, attended: float) -> float:
        """Of the convolution, and about 9 a number of the state, three times with backward."""
        return 3.0 * self.d_inner * (2 * self.kernel + 9 * self.d_state)

    def kept_numbers(self, length: int, *, on_cpu: bool, dropout: bool) -> int:
        """Decays, inputs, states and products of each number of the state, and channels."""
        return self.d_inner * (6 * self.d_state + 2 * self.kernel + 8)
