"""The feed-forward network of the Transformer, and gated ones."""

from __future__ import annotations

from typing import Literal, Self

from trivium.spec.feed_forwards import Positionwise
from trivium.spec.part import Count, DropoutRate, Part, Positive


class Swish(Part):
    """x * sigmoid(beta x) (Ramachandran et al. 2017); "silu" is the one with beta 1."""

    kind: Literal["swish"] = "swish"
    beta: Positive


Activation = str
"""A name in `trivium.nn.activations.ACTIVATIONS`, which is checked when a model is built."""


class FeedForward(Positionwise):
    """act(x W_up) W_down, or with a gate (act(x W_gate) * (x W_up)) W_down (Shazeer 2020).

    `dropout` is that of its hidden units, which most models do not have; where it is not 0, it
    changes with the model's.
    """

    kind: Literal["feed-forward"] = "feed-forward"
    d_ff: Count
    activation: Activation | Swish
    gated: bool = False
    bias: bool = True
    dropout: DropoutRate = 0.0

    @property
    def divided(self) -> dict[str, int]:
        """See `Positionwise.divided`."""
        return {"d_ff": self.d_ff}

    def kept_numbers(self, width: int) -> int:
        """Hidden units before and after the activation, and the gate's.

        Of these relu needs one; a Swish with its own beta also keeps its sigmoid. Dropout keeps
        what it drops, and what is left.
        """
        needed = 1 if self.activation == "relu" else 3 if isinstance(self.activation, Swish) else 2
        return self.d_ff * (needed + (2 if self.gated else 0) + (2 if self.dropout else 0))

    def with_dropout(self, dropout: float) -> Self:
        """See `Positionwise.with_dropout`."""
        return self.replace(dropout=dropout) if self.dropout else self

    def narrower(self, fraction: float) -> Self:
        """See `Positionwise.narrower`."""
        return self.replace(d_ff=max(1, round(self.d_ff * fraction)))
