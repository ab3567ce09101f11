"""The Muon optimizer for matrices: momentum with orthogonalized updates (Jordan et al. 2024)."""

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
from trivium.train.optimizers import Optimizer, Optimizers, block_matrices, trained_parameters

# With Muon, the learning rate of token embeddings is AdamW's rate times this factor and
# `embedding_lr_scale`.
_EMBEDDING_RATE = 16.0
# The coefficients of an odd polynomial of degree 5, and the number of iterations in which it maps
# singular values in (0, 1] close to 1.
_COEFFICIENTS, _ROUNDS = (3.4445, -4.7750, 2.0315), 5
# The maximum number of elements of matrices of equal shape that are orthogonalized together.
_STACKED = 1 << 24


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for all other parameters."""

    kind: Literal["muon"] = "muon"
    matrix_lr: float = Field(0.01, gt=0, description="peak learning rate of Muon's matrices")
    momentum: float = Field(0.95, ge=0, lt=1, description="momentum for Muon's matrices")
    compile: bool = Field(
        False, description="torch.compile the updates of matrices; its speed is not measured yet"
    )

    def with_default_learning_rates(self, adamw_lr: float, embedding_lr_scale: float) -> Self:
        """Return the optimizer with default values for the learning rates that are not set.

        Token embeddings, which AdamW trains, get a higher learning rate than other parameters.
        """
        new = super().with_default_learning_rates(adamw_lr, embedding_lr_scale)
        assert new.lr is not None
        rate = float(f"{new.lr * _EMBEDDING_RATE * embedding_lr_scale:.3g}")
        return new.replace(embedding_lr=new.embedding_lr or rate)

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build Muon and AdamW, or only AdamW if no matrix inside a block is trained."""
        parameters = trained_parameters(model)
        matrices = block_matrices(model)
        rest = {name: weight for name, weight in parameters.items() if name not in matrices}
        if not matrices:
            return [self.build_adamw(model, rest)]
        scales = _get_query_lr_factors(model)
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
        return [muon, self.build_adamw(model, rest)]

    def state_size(self, model: nn.Module) -> int:
        """Return the number of elements in the optimizer state.

        This is one momentum for each weight trained by Muon, and two moments for each other weight.
        """
        return super().state_size(model) - sum(w.numel() for w in block_matrices(model).values())


class MatrixMuon(torch.optim.Optimizer):
    """Muon for a list of matrices: the update is the orthogonalized Nesterov momentum.

    One learning rate suits models of every width, while AdamW's would have to fall with the width.
    For a weight matrix [height, width], inputs with elements of size 1 have the norm sqrt(width),
    and outputs have the norm sqrt(height). For outputs to change by the same fraction at every
    width, an update needs the spectral norm lr * sqrt(height / width) (Yang, Simon and Bernstein
    2023, "A spectral condition for feature learning"). Orthogonal updates have the norm 1 and are
    multiplied by this factor. Like Jordan, we use the factor lr for matrices that are wider than
    high: their ratio of height to width is the same in models of all widths, as long as d_ff and
    the heads grow with the width. Without sharding, the updates are those of `torch.optim.Muon`.

    With sharding, the momentum of a matrix is gathered on every process. One process orthogonalizes
    the momentum and broadcasts the update. Different processes do this for different matrices.
    Matrices of equal shape are updated together.

    Args:
        groups: the parameter groups, which contain only matrices. A group may have its own learning
            rate.
        lr: the learning rate of groups that have none.
        momentum: the decay of the momentum.
        weight_decay: the decoupled weight decay, which is multiplied by the learning rate.
        precision: the dtype of the matmuls that orthogonalize an update.
        compiled: whether the orthogonalization is compiled, once for tall and once for wide
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
        self.orthogonalize = orthogonalize
        if compiled:
            self.orthogonalize = torch.compile(orthogonalize, dynamic=True)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, dict[str, Any]]]] = defaultdict(list)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[tuple(weight.shape)].append((weight, group))
        for shape, weights in by_shape.items():
            most = max(1, _STACKED // (shape[0] * shape[1])) * _get_rank_and_world_size()[1]
            count = -(-len(weights) // -(-len(weights) // most))  # stacks of nearly equal size
            for first in range(0, len(weights), count):
                self._update_matrices(weights[first : first + count])

    def _update_matrices(self, weights: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """Update matrices of the same shape, given as pairs of a weight and its parameter group."""
        rank, size = _get_rank_and_world_size()
        own: list[Tensor] = []
        updates = self._update_momenta([weight for weight, _ in weights])
        for number, ((weight, _), update) in enumerate(zip(weights, updates, strict=True)):
            whole = _gather_like(weight, update)  # a collective: all processes call it
            if number % size == rank:
                own.append(whole)
        steps = iter(self._orthogonalize_momenta(torch.stack(own)) if own else ())
        decays = [1 - group["lr"] * group["weight_decay"] for _, group in weights]
        torch._foreach_mul_([_to_local(weight) for weight, _ in weights], decays)  # type: ignore
        for number, (weight, group) in enumerate(weights):
            height, width = weight.shape
            if number % size == rank:
                step = next(steps)
            else:
                step = torch.empty(weight.shape, dtype=self.precision, device=weight.device)
            if size > 1:
                dist.broadcast(step, number % size)
            rate = group["lr"] * max(1, height / width) ** 0.5
            weight.add_(_shard_like(weight, step), alpha=-rate)

    def _orthogonalize_momenta(self, momenta: Tensor) -> Tensor:
        """Orthogonalize momenta [n, height, width] in `precision`. Returns the updates."""
        if self.precision is torch.float16:  # gradients would underflow
            momenta = momenta / momenta.norm(dim=(1, 2), keepdim=True).clamp(min=1e-30)
        return self.orthogonalize(momenta.to(self.precision))

    def _update_momenta(self, weights: list[Tensor]) -> list[Tensor]:
        """Update the momentum buffers from the gradients. Returns the Nesterov momenta.

        The Nesterov momentum of a weight is its gradient, interpolated with the updated momentum.
        For a sharded weight, only the shard of this process is returned.
        """
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        momentum = self.defaults["momentum"]
        means = [_to_local(self.state[weight]["momentum_buffer"]) for weight in weights]
        gradients = [_to_local(weight.grad) for weight in weights if weight.grad is not None]
        torch._foreach_lerp_(means, gradients, 1 - momentum)  # type: ignore
        return list(torch._foreach_lerp(gradients, means, momentum))  # type: ignore


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return approximately U V^T for each matrix U S V^T, by Newton-Schulz iteration.

    `matrices` and the result are [n, height, width]. The singular values of the result are between
    0.7 and 1.2.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT.contiguous() if tall else x


def _get_rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes; (0, 1) if there is only one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather_full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor on every process. Other tensors are returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _to_local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a sharded tensor. Other tensors are returned unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _gather_like(weight: Tensor, shard: Tensor) -> Tensor:
    """Gather a tensor on every process, given this process's shard.

    The tensor is sharded like `weight`. If `weight` is not sharded, `shard` is returned unchanged.
    """
    if not isinstance(weight, DTensor):
        return shard
    mesh, shape = weight.device_mesh, weight.shape
    return DTensor.from_local(
        shard, mesh, weight.placements, run_check=False, shape=shape, stride=weight.stride()
    ).full_tensor()


def _shard_like(weight: Tensor, tensor: Tensor) -> Tensor:
    """Shard a replicated tensor with the placements of `weight`. Returns a DTensor.

    If `weight` is not sharded, the tensor is returned unchanged.
    """
    if not isinstance(weight, DTensor):
        return tensor
    mesh = weight.device_mesh
    copies = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return copies.redistribute(placements=weight.placements)


def _get_query_lr_factors(model: nn.Module) -> dict[str, float]:
    """Return factors for the learning rates of query matrices, by parameter name.

    In T5, attention scores are not divided by sqrt(head_dim), and the query weights are smaller
    instead. Their factor is below 1 by the same ratio, since Muon's updates have the same size for
    every matrix. If scores are divided by sqrt(head_dim), the factor is 1.
    """
    return {
        f"{name}.query.weight": module.head_dim**-0.5 / module.scale
        for name, module in model.named_modules()
        if isinstance(module, AttentionModule)
    }
