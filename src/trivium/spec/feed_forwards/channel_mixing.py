"""The channel mixing of RWKV."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from trivium.spec.feed_forwards import Positionwise
from trivium.spec.part import Count


class ChannelMixing(Positionwise):
    """A network that reads a token and the one before it (Peng et al. 2023, section 3.1)."""

    reads_earlier: ClassVar[bool] = True
    kind: Literal["channel-mixing"] = "channel-mixing"
    d_ff: Count

    def kept_numbers(self, width: int) -> int:
        """The token before, two mixtures with it, the receptance and what it is multiplied with;
        hidden units after relu, and their squares."""
        return 5 * width + 2 * self.d_ff

    def narrower(self, fraction: float) -> Self:
        """See `Positionwise.narrower`."""
        return self.replace(d_ff=max(1, round(self.d_ff * fraction)))
