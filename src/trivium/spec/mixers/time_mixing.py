"""The time mixing of RWKV."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.mixers import Mixer
from trivium.spec.part import Count


class TimeMixing(Mixer):
    """A mean of earlier tokens whose weights fade with distance (Peng et al. 2023, section 3.1).

    Each of the `d_inner` channels, in the paper d_model, fades at its own rate. A weight is the
    exponential of a key, as in attention; there are no queries.
    """

    encodes: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["time-mixing"] = "time-mixing"
    d_inner: Count

    def flops(self, attended: float) -> float:
        """About 30 a channel; forward, again, backward twice."""
        return 4 * 30.0 * self.d_inner

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """The token before and three mixtures with it, as wide as the channels; keys, values, means
        before and after the receptance, and that. What weights are made of is computed again."""
        return 9 * self.d_inner
