"""Optimizers: PyTorch's own AdamW and Muon, with the parameters sorted into groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Muon steps have a matrix norm that does not depend on its shape; this factor gives
# tall matrices the step that AdamW's update would have (Jordan et al. 2024).
_MUON_ADJUSTMENT = "original"
_TABLES = ("tokens.weight", "source_tokens.weight")


def adamw(
    model: nn.Module,
    *,
    lr: float,
    table_lr: float | None = None,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov and Hutter 2017) with weight decay on matrices only, fused.

    `table_lr` is the learning rate of token vectors, None: that of all the rest.
    """
    return [_adamw(_trained(model), lr, table_lr, betas, eps, weight_decay)]


def muon(
    model: nn.Module,
    matrices: Iterable[str],
    *,
    lr: float,
    matrix_lr: float,
    shares: Mapping[str, float] | None = None,
    table_lr: float | None = None,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the named matrices of the blocks, AdamW for all the rest.

    `shares` has those of the matrices whose learning rate is only a share of `matrix_lr`. Where no
    matrix is trained there is no Muon. Its steps are made orthogonal in bfloat16 as published, but
    in float32 on a CPU that has no instructions for bfloat16.
    """
    parameters, shares = _trained(model), shares or {}
    names = [name for name in matrices if name in parameters]
    rest = {name: weight for name, weight in parameters.items() if name not in set(names)}
    if not names:
        return [_adamw(rest, lr, table_lr, betas, eps, weight_decay)]
    by_share: dict[float, list[nn.Parameter]] = {}
    for name in names:
        by_share.setdefault(shares.get(name, 1.0), []).append(parameters[name])
    return [
        _Muon(
            [{"params": group, "lr": matrix_lr * share} for share, group in by_share.items()],
            lr=matrix_lr,
            momentum=momentum,
            weight_decay=weight_decay,
            adjust_lr_fn=_MUON_ADJUSTMENT,
        ),
        _adamw(rest, lr, table_lr, betas, eps, weight_decay),
    ]


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Scale every group's peak learning rate; returns that of the last group."""
    rate = 0.0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group["peak_lr"] * factor
            group["lr"] = rate
    return rate


def remember_peaks(optimizers: list[torch.optim.Optimizer]) -> None:
    """Note each group's learning rate as its peak, which the schedule scales."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]


def state_tensors(optimizers: list[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
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
    optimizers: list[torch.optim.Optimizer], model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Put back what `state_tensors` gave. Raises KeyError where an entry is of no parameter."""
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
        # AdamW's step counters stay in float32 beside the weights; moments have their shape.
        owner[parameter].state[parameter][entry] = value.to(parameter.device)


class _Muon(torch.optim.Muon):
    """PyTorch's, but in float32 where bfloat16 takes tens of times as long."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """A step of every matrix."""
        if self.param_groups[0]["params"][0].device.type == "cpu" and not _multiplies_bf16():
            with _InFloat32():
                return super().step(closure)
        return super().step(closure)


class _InFloat32(TorchFunctionMode):
    """PyTorch's Muon asks for bfloat16 in so many words: here it gets a copy in float32."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def _multiplies_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16."""
    has_kernels = torch.backends.mkldnn.is_available()
    return has_kernels and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _adamw(
    parameters: dict[str, nn.Parameter],
    lr: float,
    table_lr: float | None,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    apart = _TABLES if table_lr is not None else ()
    tables = [weight for name, weight in parameters.items() if name in apart]
    listed = [weight for name, weight in parameters.items() if name not in apart]
    groups = [
        *([{"params": tables, "weight_decay": weight_decay, "lr": table_lr}] if tables else []),
        {"params": [p for p in listed if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in listed if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)
