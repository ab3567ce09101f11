"""Mixtures of experts.

Shape letters: M tokens, D width, E experts, C experts that a token takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.context import Context
from trivium.nn.feed_forwards import FeedForwardModule, Positionwise
from trivium.nn.feed_forwards.feed_forward import FeedForward, FeedForwardNetwork
from trivium.nn.state import State

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

    def build(self, d_model: int) -> ExpertsNetwork:
        """See `Positionwise.build`."""
        return ExpertsNetwork(self, d_model)


class ExpertsNetwork(FeedForwardModule):
    """sum_i g_i FFN_i(x) over the C experts of largest p = softmax(W x), where g_i = p_i / sum p.

    An expert computes the tokens that chose it in one product, however many they are: none is
    dropped. The loss of a stack is

        balance * E * sum_i f_i P_i

    where f_i is how often a token chooses expert i, and P_i its p_i, both means over the tokens of
    all layers. It is `balance * C` where every expert has an equal load. Padding does not count;
    of the last layer only the tokens count that its network computes (`Context.select`).

    Both means are of one micro-batch, since f is known only after all of its tokens have chosen. A
    step's loss is the mean of its micro-batches, each weighted by its tokens: the same for any
    number of processes, but not that of the whole step at once. Smaller micro-batches balance more
    strictly (Qiu et al. 2025, section 3).

    Source: Jiang et al. 2024, section 2.1; the loss is Fedus et al. 2021, equations 4 to 6, there
    with one choice and for every layer by itself. Means over all layers are those of `transformers`
    (`load_balancing_loss_func`).
    """

    def __init__(self, part: Experts, width: int) -> None:
        super().__init__(part, width)
        self.router = nn.Linear(width, part.num_experts, bias=False)
        # Modules of their own: one tensor of all is no faster, and costs a copy of its gradient.
        self.experts = nn.ModuleList(
            FeedForwardNetwork(part.expert, width) for _ in range(part.num_experts)
        )

    @property
    def idle(self) -> Iterable[nn.Module]:
        """See `FeedForwardModule.idle`."""
        return self.experts[self.part.num_chosen :]

    def forward(
        self, x: Tensor, context: Context | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[..., D] -> [..., D], and `_load`; None with a cache, where nothing is trained."""
        tokens = x.flatten(0, -2)
        probabilities = self.router(tokens).float().softmax(-1)  # [M, E]
        gates, chosen = probabilities.topk(self.part.num_chosen, -1)  # [M, C]
        gates = gates / gates.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)  # of all M * C choices, by expert
        owner = order // self.part.num_chosen  # the token of each
        sizes = chosen.flatten().bincount(minlength=self.part.num_experts).tolist()
        parts = tokens.index_select(0, owner).split(sizes)
        outputs = [
            # In training all have a gradient, as several processes expect; of no token it is 0.
            expert(part)[0] if len(part) or self.training else part
            for expert, part in zip(self.experts, parts, strict=True)
        ]
        weighted = torch.cat(outputs) * gates.flatten()[order, None]
        y = torch.zeros_like(tokens).index_add(0, owner, weighted.to(x.dtype)).view(x.shape)
        if context is not None and context.span is not None:
            return y, None
        return y, self._load(probabilities, chosen, context)

    def _load(self, probabilities: Tensor, chosen: Tensor, context: Context | None) -> Tensor:
        """How often real tokens choose each expert, and the sum of their probabilities: [2, E]."""
        if context is not None:
            real = context.documents if context.real is None else context.real
            if real is not None:
                real = context.chosen(real).flatten() != 0
                probabilities, chosen = probabilities[real], chosen[real]
        counts = chosen.flatten().bincount(minlength=self.part.num_experts)
        return torch.stack((counts.to(probabilities.dtype), probabilities.sum(0)))

    def loss(self, added: Tensor) -> Tensor:
        """The balance loss, from `_load` of all layers added up [2, E]; 0 of no tokens."""
        counts, probabilities = added
        tokens = (counts.sum() / self.part.num_chosen).clamp(min=1.0)
        shares = (counts / tokens) * (probabilities / tokens)
        return self.part.balance * self.part.num_experts * shares.sum()
