"""Mixtures of experts: of many feed-forward networks each token takes a few."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from trivium.errors import SpecError
from trivium.spec.feed_forwards import Positionwise
from trivium.spec.feed_forwards.feed_forward import FeedForward

_ExpertCount = Annotated[int, Field(ge=1, le=1000)]


class Experts(Positionwise):
    """`num_experts` feed-forward networks, of which a router chooses `num_chosen` for a token.

    Their outputs are weighted by the router's probabilities, made to sum to 1 (Jiang et al. 2024,
    Mixtral, section 2.1). The weight of a single one is 1 whatever the router says, which then
    learns from the balance loss alone. `balance` is the weight of that loss, which keeps the load
    of experts equal (Fedus et al. 2021, section 2.2; `router_aux_loss_coef` in `transformers`).
    """

    adds_loss: ClassVar[bool] = True
    has_fixed_shapes: ClassVar[bool] = False
    kind: Literal["experts"] = "experts"
    num_experts: _ExpertCount
    num_chosen: _ExpertCount = 2
    expert: FeedForward
    balance: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.01

    def check(self) -> None:
        """Raise SpecError where more experts are chosen than there are."""
        if self.num_chosen > self.num_experts:
            raise SpecError(
                f"num_chosen={self.num_chosen} is more than num_experts={self.num_experts}."
            )

    @property
    def d_ff(self) -> int:
        """Hidden units of one expert."""
        return self.expert.d_ff

    def kept_numbers(self, width: int) -> int:
        """Probabilities; of a chosen expert its input, what it keeps, its output, that weighted."""
        one = 3 * width + self.expert.kept_numbers(width)
        return self.num_experts + self.num_chosen * one

    def with_dropout(self, dropout: float) -> Self:
        """See `Positionwise.with_dropout`."""
        return self.replace(expert=self.expert.with_dropout(dropout))

    def narrower(self, fraction: float) -> Self:
        """See `Positionwise.narrower`."""
        return self.replace(expert=self.expert.narrower(fraction))
