"""Optimizers as configuration classes. Each kind is one class in its own file of this package."""

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
"""The PyTorch optimizers that train a model together."""

_TOKEN_EMBEDDINGS = ("tokens", "source_tokens")
_WEIGHT_DECAY = 0.01
# The minimum averaging window of weights in steps, for `fit_weight_decay_to_epoch`.
_FEWEST_STEPS = 100


class Optimizer(Choice, Config, ABC):
    """Base class of optimizers. Its fields include those of AdamW.

    An optimizer such as Muon trains some of the parameters with AdamW. If `lr` is not set, a
    default is computed from the width of the model.
    """

    lr: float | None = Field(
        None, gt=0, description="peak learning rate (default: by the model's width)"
    )
    embedding_lr: float | None = Field(
        None,
        gt=0,
        description="peak learning rate of token embeddings (default: lr; with Muon 16 lr at width "
        "256, and the same rate at every width)",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="ratio of a layer's learning rate to that of the layer above; heads use lr, "
        "embeddings the smallest rate (layer-wise decay)",
    )
    weight_decay: float | None = Field(
        None,
        ge=0,
        description="decoupled weight decay of matrices, not vectors (default: 0.01, and more from "
        "the second epoch on for small new models of one causal or translation source)",
    )

    betas: tuple[float, float] = Field(
        (0.9, 0.98), description="decay rates of AdamW's two moments"
    )
    eps: float = Field(1e-8, gt=0, description="added to AdamW's denominator")

    fine_tuning: ClassVar[Mapping[str, Any]] = {"betas": [0.9, 0.999]}
    """The default values for labelled examples, for fields whose default is then different."""

    supports_sharding: ClassVar[bool] = True
    """Whether the optimizer supports sharded weights (FSDP, tensor parallelism)."""

    def build(self, model: nn.Module, precision: torch.dtype = torch.float32) -> Optimizers:
        """Build the PyTorch optimizers that together train every parameter with `requires_grad`.

        `precision` is the dtype of the matmuls in an optimizer step (as in Muon). If `layer_decay`
        is below 1, each layer's learning rate is that of the layer above, times `layer_decay`. This
        is called discriminative fine-tuning (Howard and Ruder 2018, section 3.1, where the factor
        is 1 / 2.6) or layer-wise learning rate decay (Clark et al. 2020, table 7).
        """
        optimizers = self._build(model, precision)
        if self.layer_decay < 1.0:
            depths = model.layer_depths()  # type: ignore[operator]
            for optimizer in optimizers:
                optimizer.param_groups[:] = [
                    part
                    for group in optimizer.param_groups
                    for part in _split_group_by_layer(group, depths, self.layer_decay)
                ]
        return optimizers

    @property
    def initial_weight_decay(self) -> float:
        """The weight decay at the start of training. It may increase after the first epoch."""
        return _WEIGHT_DECAY if self.weight_decay is None else self.weight_decay

    @abstractmethod
    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build the PyTorch optimizers, without layer-wise learning rate decay."""

    def with_default_learning_rates(self, adamw_lr: float, embedding_lr_scale: float) -> Self:
        """Return the optimizer with default values for the learning rates that are not set.

        Args:
            adamw_lr: the default peak learning rate of AdamW for this model.
            embedding_lr_scale: the factor for the learning rate of token embeddings, which depends
                on the width of the model.
        """
        if self.lr is not None:
            return self
        return self.replace(lr=float(f"{adamw_lr:.3g}"))

    def state_size(self, model: nn.Module) -> int:
        """Return the number of elements in the optimizer state.

        By default, this is two moments per trained weight, as in AdamW.
        """
        return 2 * sum(weight.numel() for weight in trained_parameters(model).values())

    def _make_parameter_groups(
        self, parameters: Mapping[str, nn.Parameter], vector_ids: set[int]
    ) -> list[dict[str, Any]]:
        """Split parameters into the parameter groups of a PyTorch optimizer.

        Weight decay applies to matrices. It does not apply to vectors, or to matrices whose Python
        ids are in `vector_ids`. Token embeddings form a separate group if `embedding_lr` is set.
        """
        tokens: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in parameters.items():
            module = name.rpartition(".")[0].rpartition(".")[2]
            is_token_embedding = module in _TOKEN_EMBEDDINGS
            own_rate = is_token_embedding and self.embedding_lr is not None
            (tokens if own_rate else others).append(weight)
        decayed = {"weight_decay": self.initial_weight_decay}
        groups: list[dict[str, Any]] = [
            {"params": [p for p in others if p.ndim > 1 and id(p) not in vector_ids], **decayed},
            {
                "params": [p for p in others if p.ndim <= 1 or id(p) in vector_ids],
                "weight_decay": 0.0,
            },
        ]
        if tokens:
            groups.append({"params": tokens, "lr": self.embedding_lr, **decayed})
        return groups

    def build_adamw(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter]
    ) -> torch.optim.Optimizer:
        """Build a fused AdamW for these parameters of the model."""
        assert self.lr is not None
        return torch.optim.AdamW(
            self._make_parameter_groups(parameters, _get_non_matrix_ids(model)),
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=True,
        )


def _split_group_by_layer(
    group: dict[str, Any], depths: Mapping[nn.Parameter, int], decay: float
) -> list[dict[str, Any]]:
    """Split a parameter group into one group per layer, for layer-wise learning rate decay.

    The learning rate of a layer is `lr * decay**depth`. `depths` maps each parameter to the depth
    of its layer, counted from the top.
    """
    layers: dict[int, list[nn.Parameter]] = defaultdict(list)
    for weight in group["params"]:
        layers[depths[weight]].append(weight)
    return [
        {**group, "params": weights, "lr": group["lr"] * decay**depth}
        for depth, weights in layers.items()
    ]


def set_learning_rate(optimizers: Optimizers, factor: float) -> None:
    """Set the learning rate of every parameter group to its peak times `factor`.

    The peak of a group is its learning rate at the first call.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor


def fit_weight_decay_to_epoch(optimizers: Optimizers, steps_per_epoch: float) -> None:
    """Increase the weight decay so that the weights are a moving average over about one epoch.

    With decoupled weight decay, the weights are a moving average of the updates in the last
    1 / (learning rate * decay) steps. The best length of this window, in epochs, does not depend on
    the size of the model or of the data (Wang and Aitchison 2024, "How to set AdamW's weight decay
    as you scale model and dataset size"). We use one epoch. The decay of a parameter group is never
    reduced, and groups without decay are skipped.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if decay := group["weight_decay"]:
                forgetting = 1.0 / (group["peak_lr"] * max(steps_per_epoch, _FEWEST_STEPS))
                group["weight_decay"] = max(decay, forgetting)


def change_weight_decay(optimizers: Optimizers, decay: float) -> None:
    """Set the weight decay of every parameter group that uses weight decay."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group["weight_decay"]:
                group["weight_decay"] = decay


def get_state_tensors(optimizers: Optimizers, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in the optimizer state by name, such as `PARAMETER/exp_avg`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{entry}": value
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
        if isinstance(value, Tensor)
    }


def load_state_tensors(
    optimizers: Optimizers, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load tensors, as returned by `get_state_tensors`, into the state of the optimizers.

    Raises KeyError if a tensor does not belong to any parameter of the optimizers.
    """
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
        if entry == "step":  # a scalar, but a vector in consolidated checkpoints
            value = value.reshape(())
        owner[parameter].state[parameter][entry] = value.to(parameter.device)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name: those with `requires_grad`."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def block_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained matrices inside the blocks of a model, by name."""
    blocks = {id(p) for block in model.blocks for p in block.parameters()}  # type: ignore
    blocks -= _get_non_matrix_ids(model)
    return {n: p for n, p in trained_parameters(model).items() if id(p) in blocks and p.ndim == 2}


def _get_non_matrix_ids(model: nn.Module) -> set[int]:
    """Return the Python ids of parameters that are stored as matrices but are treated as vectors.

    `PartModule.non_matrices` contains the names of these parameters.
    """
    parts = (module for module in model.modules() if isinstance(module, PartModule))
    return {id(getattr(part, name)) for part in parts for name in part.non_matrices}


import_submodules(__name__, __path__)
