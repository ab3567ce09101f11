"""Optimizers as configuration classes; a kind is one class in a file of its own here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from trivium.choice import Choice, import_submodules
from trivium.config import Config
from trivium.nn.part import PartModule

Optimizers = list[torch.optim.Optimizer]
"""Those that together train a model."""

_TOKEN_EMBEDDINGS = ("tokens", "source_tokens")
_WEIGHT_DECAY = 0.01
# Weights that read a text again are a mean of at least so many steps.
_FEWEST_STEPS = 100


class Optimizer(Choice, Config, ABC):
    """Keys that all optimizers have, since all leave some parameters to AdamW.

    `lr` follows from the model's width unless set.
    """

    lr: float | None = Field(None, gt=0, description="peak learning rate; by width unless set")
    embedding_lr: float | None = Field(
        None,
        gt=0,
        description="peak learning rate of token embeddings; lr unless set, with Muon the same at "
        "every width, 16 lr at 256",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor of a layer's learning rate to that of the layer above; heads have lr, "
        "embeddings the smallest rate (discriminative rates)",
    )
    weight_decay: float | None = Field(
        None,
        ge=0,
        description="decoupled decay of matrices, not vectors; unless set, 0.01, and from the "
        "second pass on more for small new models of one causal or translation source",
    )

    betas: tuple[float, float] = Field((0.9, 0.98), description="decay of AdamW's two moments")
    eps: float = Field(1e-8, gt=0, description="added to AdamW's denominator")

    fine_tuning: ClassVar[Mapping[str, Any]] = {"betas": [0.9, 0.999]}
    """Keys whose default is another on labelled examples."""

    supports_sharding: ClassVar[bool] = True
    """Whether weights may be divided among processes (FSDP, tensor parallelism)."""

    def build(self, model: nn.Module, precision: torch.dtype = torch.float32) -> Optimizers:
        """Optimizers that together train every parameter with `requires_grad`.

        Products of matrices that a step takes have the run's `precision`. With a `layer_decay` the
        rates of a layer are those of the layer above times it: discriminative fine-tuning (Howard
        and Ruder 2018, section 3.1, with 1 / 2.6), layer-wise decay (Clark et al. 2020, table 7).
        """
        optimizers = self._build(model, precision)
        if self.layer_decay < 1.0:
            depths = model.layer_depths()  # type: ignore[operator]
            for optimizer in optimizers:
                optimizer.param_groups[:] = [
                    part
                    for group in optimizer.param_groups
                    for part in _by_layer(group, depths, self.layer_decay)
                ]
        return optimizers

    @property
    def initial_weight_decay(self) -> float:
        """The weight decay while text is read for the first time."""
        return _WEIGHT_DECAY if self.weight_decay is None else self.weight_decay

    @abstractmethod
    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """As `build`, with the rates of heads for all layers."""

    def complete(self, adamw_rate: float, embedding_scale: float) -> Self:
        """With every learning rate decided.

        Args:
            adamw_rate: what suits AdamW.
            embedding_scale: how much less the rate of token embeddings falls with the width.
        """
        if self.lr is not None:
            return self
        return self.replace(lr=float(f"{adamw_rate:.3g}"))

    def state_size(self, model: nn.Module) -> int:
        """Numbers that are kept of the weights that are trained: two moments of each (AdamW)."""
        return 2 * sum(weight.numel() for weight in trained(model).values())

    def _groups(
        self, parameters: Mapping[str, nn.Parameter], non_matrices: set[int]
    ) -> list[dict[str, Any]]:
        """Matrices decay, vectors do not; token embeddings may have a rate of their own."""
        tokens: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in parameters.items():
            module = name.rpartition(".")[0].rpartition(".")[2]
            is_token_embedding = module in _TOKEN_EMBEDDINGS
            own_rate = is_token_embedding and self.embedding_lr is not None
            (tokens if own_rate else others).append(weight)
        decayed = {"weight_decay": self.initial_weight_decay}
        groups: list[dict[str, Any]] = [
            {"params": [p for p in others if p.ndim > 1 and id(p) not in non_matrices], **decayed},
            {
                "params": [p for p in others if p.ndim <= 1 or id(p) in non_matrices],
                "weight_decay": 0.0,
            },
        ]
        if tokens:
            groups.append({"params": tokens, "lr": self.embedding_lr, **decayed})
        return groups

    def adamw(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter]
    ) -> torch.optim.Optimizer:
        """AdamW for these parameters, fused."""
        assert self.lr is not None
        return torch.optim.AdamW(
            self._groups(parameters, _vectors(model)),
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=True,
        )


def _by_layer(
    group: dict[str, Any], depths: Mapping[nn.Parameter, int], decay: float
) -> list[dict[str, Any]]:
    """A group for every layer that one has weights of, its rate times decay ** depth."""
    layers: dict[int, list[nn.Parameter]] = defaultdict(list)
    for weight in group["params"]:
        layers[depths[weight]].append(weight)
    return [
        {**group, "params": weights, "lr": group["lr"] * decay**depth}
        for depth, weights in layers.items()
    ]


def set_learning_rate(optimizers: Optimizers, factor: float) -> None:
    """Set every group's rate to its peak, which is its rate at the first call, times `factor`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor


def set_weight_decay(optimizers: Optimizers, steps: float) -> None:
    """Let every decaying group forget its steps within about so many more, those of a pass.

    With decoupled decay, weights are a moving mean of the last 1 / (rate * decay) steps. The best
    number of them is a number of passes over the data, whatever the model's and the data's size
    (Wang and Aitchison 2024, "How to set AdamW's weight decay as you scale model and dataset
    size"). We take one pass, and never a smaller decay than that of the group.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if decay := group["weight_decay"]:
                forgetting = 1.0 / (group["peak_lr"] * max(steps, _FEWEST_STEPS))
                group["weight_decay"] = max(decay, forgetting)


def change_weight_decay(optimizers: Optimizers, decay: float) -> None:
    """Set the weight decay of every group that has one."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group["weight_decay"]:
                group["weight_decay"] = decay


def state_tensors(optimizers: Optimizers, model: nn.Module) -> dict[str, Tensor]:
    """Every tensor the optimizers keep, named `parameter/entry`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{entry}": value
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
        if isinstance(value, Tensor)
    }


def load_state_tensors(
    optimizers: Optimizers, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Restore what `state_tensors` returned. Raises KeyError for an entry of no parameter."""
    owner = {
        parameter: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter_name, _, entry = name.rpartition("/")
        parameter = parameters[parameter_name]
        if entry == "step":  # a scalar, which `Checkpoints` writes as a vector
            value = value.reshape(())
        owner[parameter].state[parameter][entry] = value.to(parameter.device)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def block_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The matrices of the blocks that are trained, by name."""
    blocks = {id(p) for block in model.blocks for p in block.parameters()}  # type: ignore
    blocks -= _vectors(model)
    return {n: p for n, p in trained(model).items() if id(p) in blocks and p.ndim == 2}


def _vectors(model: nn.Module) -> set[int]:
    """The weights that parts call vectors (`PartModule.non_matrices`)."""
    parts = (module for module in model.modules() if isinstance(module, PartModule))
    return {id(getattr(part, name)) for part in parts for name in part.non_matrices}


import_submodules(__name__, __path__)
