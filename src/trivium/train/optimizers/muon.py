"""Muon for matrices: momentum whose steps are made orthogonal (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from trivium.nn.mixers.attention import AttentionModule
from trivium.train.optimizers import Optimizer, Optimizers, block_matrices, trained

# Beside Muon, AdamW trains token embeddings at so many times its rate, times `embedding_scale`.
_EMBEDDING_RATE = 16.0
# Of the odd polynomial of degree 5 that takes singular values in (0, 1] close to 1 in five rounds.
_COEFFICIENTS, _ROUNDS = (3.4445, -4.7750, 2.0315), 5
# Matrices of equal shape are made orthogonal together, up to so many numbers.
_STACKED = 1 << 24


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for all other parameters."""

    kind: Literal["muon"] = "muon"
    matrix_lr: float = Field(0.01, gt=0, description="peak learning rate of Muon's matrices")
    momentum: float = Field(0.95, ge=0, lt=1, description="momentum of Muon's matrices")
    compile: bool = Field(
        False, description="torch.compile the steps of matrices; its speed is not measured yet"
    )

    def complete(self, adamw_rate: float, embedding_scale: float) -> Self:
        """Token embeddings, which stay with AdamW, take larger steps."""
        new = super().complete(adamw_rate, embedding_scale)
        assert new.lr is not None
        rate = float(f"{new.lr * _EMBEDDING_RATE * embedding_scale:.3g}")
        return new.replace(embedding_lr=new.embedding_lr or rate)

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Muon and AdamW; AdamW alone where no matrix of a block is trained."""
        parameters = trained(model)
        matrices = block_matrices(model)
        rest = {name: weight for name, weight in parameters.items() if name not in matrices}
        if not matrices:
            return [self.adamw(model, rest)]
        scales = _query_scales(model)
        by_scale: dict[float, list[nn.Parameter]] = {}
        for name, weight in matrices.items():
            by_scale.setdefault(scales.get(name, 1.0), []).append(weight)
        groups = [{"params": p, "lr": self.matrix_lr * scale} for scale, p in by_scale.items()]
        muon = MatrixMuon(
            groups,
            lr=self.matrix_lr,
            momentum=self.momentum,
            weight_decay=self.initial_weight_decay,
            precision=precision,
            compiled=self.compile,
        )
        return [muon, self.adamw(model, rest)]

    def state_size(self, model: nn.Module) -> int:
        """Of matrices only a momentum."""
        return super().state_size(model) - sum(w.numel() for w in block_matrices(model).values())


class MatrixMuon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal, as the step of every matrix; `torch.optim.Muon` in steps.

    One rate suits every width. Inputs x whose numbers are of size 1 have the length sqrt(width),
    and outputs the length sqrt(height). So that outputs change by the same share at every width, a
    step must have the spectral norm lr * sqrt(height / width) (Yang, Simon and Bernstein 2023, "A
    spectral condition for feature learning"); orthogonal steps have the norm 1, and are multiplied
    by it. We follow Jordan in taking 1 for wide matrices, which is the same at all widths as long
    as d_ff and the heads grow with them. A rate of AdamW would have to fall with the width.

    A sharded matrix is gathered for a step, on every process; one of them makes the step
    orthogonal: they divide the matrices. Matrices of equal shape take their steps together.

    Args:
        groups: of matrices, with learning rates of their own.
        lr: of groups without one.
        momentum: the share of the old momentum that is kept.
        weight_decay: decoupled, times the learning rate.
        precision: of the products that make a step orthogonal.
        compiled: whether what makes steps orthogonal is compiled, once for tall and once for wide
            matrices.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        precision: torch.dtype,
        compiled: bool = False,
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.precision = precision
        self.orthogonalize = orthogonalized
        if compiled:
            self.orthogonalize = torch.compile(orthogonalized, dynamic=True)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """A step of every matrix that has a gradient."""
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, dict[str, Any]]]] = defaultdict(list)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[tuple(weight.shape)].append((weight, group))
        for shape, weights in by_shape.items():
            most = max(1, _STACKED // (shape[0] * shape[1])) * _processes()[1]
            count = -(-len(weights) // -(-len(weights) // most))  # stacks of nearly equal size
            for first in range(0, len(weights), count):
                self._step_together(weights[first : first + count])

    def _step_together(self, weights: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """A step of matrices of one shape."""
        rank, size = _processes()
        own: list[Tensor] = []
        updates = self._nesterov_momenta([weight for weight, _ in weights])
        for number, ((weight, _), update) in enumerate(zip(weights, updates, strict=True)):
            whole = _whole(weight, update)  # all take part
            if number % size == rank:
                own.append(whole)
        steps = iter(self._orthogonal_steps(torch.stack(own)) if own else ())
        decays = [1 - group["lr"] * group["weight_decay"] for _, group in weights]
        torch._foreach_mul_([_local(weight) for weight, _ in weights], decays)  # type: ignore
        for number, (weight, group) in enumerate(weights):
            height, width = weight.shape
            if number % size == rank:
                step = next(steps)
            else:
                step = torch.empty(weight.shape, dtype=self.precision, device=weight.device)
            if size > 1:
                dist.broadcast(step, number % size)
            rate = group["lr"] * max(1, height / width) ** 0.5
            weight.add_(_sharded_like(weight, step), alpha=-rate)

    def _orthogonal_steps(self, momenta: Tensor) -> Tensor:
        """Orthogonal steps in the precision of products: [n, height, width]."""
        if self.precision is torch.float16:  # whose smallest numbers are larger than gradients
            momenta = momenta / momenta.norm(dim=(1, 2), keepdim=True).clamp(min=1e-30)
        return self.orthogonalize(momenta.to(self.precision))

    def _nesterov_momenta(self, weights: list[Tensor]) -> list[Tensor]:
        """Return the gradients, drawn to the mean of all before, which they join.

        Of a sharded weight it is the part of this process.
        """
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        momentum = self.defaults["momentum"]
        means = [_local(self.state[weight]["momentum_buffer"]) for weight in weights]
        gradients = [_local(weight.grad) for weight in weights if weight.grad is not None]
        torch._foreach_lerp_(means, gradients, 1 - momentum)  # type: ignore
        return list(torch._foreach_lerp(gradients, means, momentum))  # type: ignore


def orthogonalized(matrices: Tensor) -> Tensor:
    """About U V^T for each matrix U S V^T, by Newton and Schulz's iteration: [n, height, width].

    Singular values end between 0.7 and 1.2.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT.contiguous() if tall else x


def _processes() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor that is divided among processes as a whole, on each of them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Tensor) -> Tensor:
    """A tensor, or the part of it that this process has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(weight: Tensor, part: Tensor) -> Tensor:
    """Gather a tensor that is sharded like `weight`; `part` is the shard of this process."""
    if not isinstance(weight, DTensor):
        return part
    mesh, shape = weight.device_mesh, weight.shape
    return DTensor.from_local(
        part, mesh, weight.placements, run_check=False, shape=shape, stride=weight.stride()
    ).full_tensor()


def _sharded_like(weight: Tensor, whole: Tensor) -> Tensor:
    """A tensor that every process has, as the weight's part of it."""
    if not isinstance(weight, DTensor):
        return whole
    mesh = weight.device_mesh
    copies = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return copies.redistribute(placements=weight.placements)


def _query_scales(model: nn.Module) -> dict[str, float]:
    """Smaller steps for queries whose scores are not divided by sqrt(head_dim) (T5).

    Muon's steps have the same size for every matrix, and these queries are that much smaller.
    """
    return {
        f"{name}.query.weight": module.head_dim**-0.5 / module.scale
        for name, module in model.named_modules()
        if isinstance(module, AttentionModule)
    }
