"""Mixture of experts (MoE).

Shape letters: M tokens, D width, E experts, C chosen experts per token, G groups of experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.feed_forwards import FeedForward, FeedForwardModule
from trivium.nn.feed_forwards.mlp import MLP, MLPModule
from trivium.nn.part import Positive
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State

_ExpertCount = Annotated[int, Field(ge=1, le=1000)]


class Experts(FeedForward):
    """Spec of a mixture of experts, in which a router chooses `top_k` experts for each token.

    The defaults are Mixtral's router (Jiang et al. 2024, section 2.1): softmax over all experts,
    and the weights of the chosen experts divided by their sum. With these defaults and `top_k` 1,
    the weight is always 1, and only the load-balancing loss trains the router.

    Args:
        num_experts: the number of experts.
        top_k: the number of experts chosen for each token.
        expert: the spec of each expert.
        aux_loss_coef: the weight of the load-balancing loss, which trains the router to use all
            experts equally (Fedus et al. 2021, section 2.2; `router_aux_loss_coef` in
            `transformers`).
        shared: the shared expert, a network that is applied to every token alongside the chosen
            experts. Several shared experts are one network with the sum of their hidden units
            (DeepSeek-V2, DeepSeek-V3).
        shared_gate: whether the output of the shared network is multiplied by sigmoid(w x)
            (Qwen2-MoE).
        scores: the function that turns the router's logits into scores.
        normalized: whether the scores of the chosen experts are divided by their sum.
        scale: a factor that multiplies the weights of the chosen experts
            (`routed_scaling_factor` in `transformers`).
        router_bias: whether the linear layer of the router has a bias (gpt-oss).
        corrected: whether the router has a correction bias, which is added to the scores when
            experts are chosen, but not to the weights of the chosen experts (DeepSeek-V3).
        num_groups: the number of groups of adjacent experts. Experts are chosen only from the
            `top_k_groups` groups with the highest scores.
        top_k_groups: the number of groups from which experts are chosen for a token.
        scores_per_group: the score of a group is the sum of its `scores_per_group` highest expert
            scores: 1 in DeepSeek-V2, 2 in DeepSeek-V3.
    """

    has_aux_loss: ClassVar[bool] = True
    has_fixed_shapes: ClassVar[bool] = False
    kind: Literal["experts"] = "experts"
    num_experts: _ExpertCount
    top_k: _ExpertCount = 2
    expert: MLP
    aux_loss_coef: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.01
    shared: MLP | None = None
    shared_gate: bool = False
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True
    scale: Positive = 1.0
    router_bias: bool = False
    corrected: bool = False
    num_groups: _ExpertCount = 1
    top_k_groups: _ExpertCount = 1
    scores_per_group: _ExpertCount = 1

    def check(self) -> None:
        """Raise SpecError if the fields contradict each other.

        There must be enough experts and groups to choose from, groups must have equal sizes, and
        `shared_gate` needs `shared`.
        """
        if self.num_experts % self.num_groups:
            raise SpecError(
                f"num_experts={self.num_experts} is not a multiple of num_groups={self.num_groups}."
            )
        size = self.num_experts // self.num_groups
        limits = {
            "top_k": ("num_experts", self.num_experts),
            "top_k_groups": ("num_groups", self.num_groups),
            "scores_per_group": ("num_experts / num_groups", size),
        }
        for name, (limit, most) in limits.items():
            if getattr(self, name) > most:
                raise SpecError(f"{name}={getattr(self, name)} is more than {limit}={most}.")
        if self.top_k > self.top_k_groups * size:
            raise SpecError(
                f"top_k={self.top_k} is more than the {self.top_k_groups * size} "
                f"experts in top_k_groups={self.top_k_groups} groups of {size}."
            )
        if self.shared_gate and self.shared is None:
            raise SpecError("shared_gate=True needs a shared network: set shared, too.")

    @property
    def d_ff(self) -> int:
        """The number of hidden units of one expert."""
        return self.expert.d_ff

    def activation_numel(self, width: int) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        It counts the router's scores. For each chosen expert it counts the input, the activations,
        and the output before and after weighting. For the shared network it counts the activations
        and, with a gate, the output and the gate value.
        """
        kept = self.num_experts + self.top_k * (3 * width + self.expert.activation_numel(width))
        if self.shared is not None:
            kept += self.shared.activation_numel(width) + (width + 1 if self.shared_gate else 0)
        return kept

    def with_dropout(self, dropout: float) -> Self:
        """Return the spec with another dropout rate of the networks whose rate is not 0."""
        shared = self.shared and self.shared.with_dropout(dropout)
        return self.replace(expert=self.expert.with_dropout(dropout), shared=shared)

    def scale_width(self, fraction: float) -> Self:
        """Return the spec with the widths of experts and shared network scaled by `fraction`."""
        shared = self.shared and self.shared.scale_width(fraction)
        return self.replace(expert=self.expert.scale_width(fraction), shared=shared)

    def build(self, d_model: int) -> ExpertsNetwork:
        """Return the module `ExpertsNetwork`. See `FeedForward.build`."""
        return ExpertsNetwork(self, d_model)


class ExpertsNetwork(FeedForwardModule):
    """Module of a mixture of experts.

        output = scale * sum_i g_i FFN_i(x) + shared(x)        i: the C chosen experts

    The router's scores are s = softmax(W x) or sigmoid(W x). The C experts with the highest
    s_i + b_i are chosen, where b is the correction bias (0 without it). With groups, only the
    experts of the groups with the highest scores are candidates. The weight is
    g_i = s_i / sum s over the chosen experts, or g_i = s_i if the weights are not normalized. The
    output of the shared network is multiplied by sigmoid(v x) if it has a gate.

    Experts have no capacity limit: each processes all tokens routed to it, and no token is dropped.
    The load-balancing loss of a stack is

        aux_loss_coef * E * sum_i f_i P_i

    where f_i is the fraction of tokens that are routed to expert i, and P_i is the mean of s_i
    divided by the sum of all s. Both are means over the tokens of all layers. The loss is
    `aux_loss_coef * C` if all experts have an equal load. Padding does not count. In the last
    layer, only the gathered tokens count (`SequenceInfo.gather_positions`).

    Both means are over one micro-batch, because f is known only after all tokens are routed. The
    loss of a step is the mean over its micro-batches, weighted by their numbers of tokens. It does
    not depend on the number of processes, but differs from a loss computed from the whole batch.
    Smaller micro-batches balance more strictly (Qiu et al. 2025, section 3).

    The correction bias is a buffer, which is saved and exported but has no gradient. Training does
    not change it. (Its update, b_i += u sign(mean load - load_i) after every step, would need the
    load of a whole batch in all processes; Wang et al. 2024, algorithm 1.)

    Source: Jiang et al. 2024, section 2.1. Shared experts and groups are those of DeepSeek-V2
    (DeepSeek-AI 2024, arXiv 2405.04434, section 2.2). Sigmoid scores and the correction bias are
    those of DeepSeek-V3 (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2). The gate of the shared
    network is that of `transformers` (`Qwen2MoeSparseMoeBlock`). The loss is Fedus et al. 2021,
    equations 4 to 6, where one expert is chosen and each layer has its own loss. Means over all
    layers are those of `transformers` (`load_balancing_loss_func`).
    """

    correction: Tensor | None

    def __init__(self, part: Experts, width: int) -> None:
        super().__init__(part, width)
        self.router = nn.Linear(width, part.num_experts, bias=part.router_bias)
        # One module per expert: a single tensor is no faster, and costs a copy of its gradient.
        self.experts = nn.ModuleList(MLPModule(part.expert, width) for _ in range(part.num_experts))
        self.shared = None if part.shared is None else MLPModule(part.shared, width)
        self.shared_gate = nn.Linear(width, 1, bias=False) if part.shared_gate else None
        correction = torch.zeros(part.num_experts) if part.corrected else None
        self.register_buffer("correction", correction)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the correction bias to 0."""
        if self.correction is not None:
            self.correction.zero_()

    @property
    def inactive_experts(self) -> Iterable[nn.Module]:
        """All but `top_k` experts, to count the active parameters per token."""
        return self.experts[self.part.top_k :]

    def forward(
        self, x: Tensor, sequence: SequenceInfo | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [..., D], and the load of the experts for the auxiliary loss.

        With a cache, the load is None. For its definition see `_compute_load`.
        """
        tokens = x.flatten(0, -2)
        logits = self.router(tokens).float()  # [M, E]
        scores = logits.softmax(-1) if self.part.scores == "softmax" else logits.sigmoid()
        chosen = self._choose_experts(scores.detach())
        gates = scores.gather(-1, chosen)  # [M, C]
        if self.part.normalized:
            gates = gates / (gates.sum(-1, keepdim=True) + 1e-20)  # sigmoids may underflow to 0
        gates = gates * self.part.scale
        order = chosen.flatten().argsort(stable=True)  # of all M * C choices, by expert
        owner = order // self.part.top_k  # the token of each
        sizes = self._count_choices(chosen, torch.ones_like(chosen)).tolist()
        parts = tokens.index_select(0, owner).split(sizes)
        # In training every expert needs a gradient, for data parallelism: 0 without tokens. A
        # compiled block cannot branch on the number of tokens.
        runs_all = self.training or torch.compiler.is_compiling()
        outputs = [
            expert(part)[0] if runs_all or len(part) else part
            for expert, part in zip(self.experts, parts, strict=True)
        ]
        weighted = torch.cat(outputs) * gates.flatten()[order, None]
        y = torch.zeros_like(tokens).index_add(0, owner, weighted.to(x.dtype)).view(x.shape)
        if self.shared is not None:
            shared = self.shared(x)[0]
            y = y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        if sequence is not None and sequence.cache_slice is not None:
            return y, None
        return y, self._compute_load(scores, chosen, sequence)

    def _count_choices(self, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of the weights [M, C] of every expert's choices [M, C]: int64 [E].

        Unlike `bincount`, this does not wait for the GPU, and `torch.compile` supports it.
        """
        counts = chosen.new_zeros(self.part.num_experts)
        return counts.scatter_add(0, chosen.flatten(), weights.flatten())

    def _choose_experts(self, scores: Tensor) -> Tensor:
        """Return the indices [M, C] of the experts chosen for each token, from scores [M, E]."""
        if self.correction is not None:
            scores = scores + self.correction
        if self.part.num_groups > 1:
            groups = scores.unflatten(-1, (self.part.num_groups, -1))  # [M, G, E / G]
            of_groups = groups.topk(self.part.scores_per_group, -1).values.sum(-1)
            taken = of_groups.topk(self.part.top_k_groups, -1).indices
            left = torch.ones_like(of_groups, dtype=torch.bool).scatter(-1, taken, False)
            scores = groups.masked_fill(left[..., None], -torch.inf).flatten(-2)
        return scores.topk(self.part.top_k, -1).indices

    def _compute_load(
        self, scores: Tensor, chosen: Tensor, sequence: SequenceInfo | None
    ) -> Tensor:
        """Return each expert's number of routed tokens and sum of router probabilities: [2, E].

        Padding does not count.
        """
        probabilities = scores
        if self.part.scores == "sigmoid":
            probabilities = scores / (scores.sum(-1, keepdim=True) + 1e-20)
        weights = torch.ones_like(chosen)
        if sequence is not None:
            is_token = sequence.documents if sequence.is_token is None else sequence.is_token
            if is_token is not None:
                is_token = sequence.gather(is_token).reshape(-1, 1) != 0
                probabilities = probabilities.masked_fill(~is_token, 0.0)
                weights = is_token.expand_as(chosen).long()
        counts = self._count_choices(chosen, weights)
        return torch.stack((counts.to(probabilities.dtype), probabilities.sum(0)))

    def loss(self, layer_sum: Tensor) -> Tensor:
        """Return the load-balancing loss of all layers.

        `layer_sum` [2, E] is the load returned by `forward`, summed over the layers. The loss is 0
        if there are no tokens.
        """
        counts, probabilities = layer_sum
        tokens = (counts.sum() / self.part.top_k).clamp(min=1.0)
        shares = (counts / tokens) * (probabilities / tokens)
        return self.part.aux_loss_coef * self.part.num_experts * shares.sum()
