"""The Muon optimizer for matrices: momentum with orthogonalized updates (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

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

Place = tuple[tuple[int, int], tuple[int, int]]
"""The place of a shard in a matrix: its first row and the end, its first column and the end."""


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

    With several processes, every matrix has an owner. The processes send their shards of the
    momentum to the owner, which orthogonalizes it and sends each process its shard of the update.
    Matrices of equal shape are updated together, with one collective in each direction.

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
        self._places: dict[Any, list[Place]] = {}
        self.orthogonalize = orthogonalize
        if compiled:
            self.orthogonalize = torch.compile(orthogonalize, dynamic=True)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        by_shape: dict[Any, list[tuple[Tensor, dict[str, Any]]]] = defaultdict(list)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    placements = getattr(weight, "placements", None)
                    by_shape[tuple(weight.shape), placements].append((weight, group))
        for (shape, _), weights in by_shape.items():
            most = max(1, _STACKED // (shape[0] * shape[1])) * _get_rank_and_world_size()[1]
            count = -(-len(weights) // -(-len(weights) // most))  # stacks of nearly equal size
            for first in range(0, len(weights), count):
                self._update_matrices(weights[first : first + count])

    def _update_matrices(self, weights: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """Update matrices of the same shape and placements, given as pairs of weight and group."""
        places = self._find_places(weights[0][0])
        momenta = self._update_momenta([weight for weight, _ in weights])
        own = _send_to_owners(momenta, weights[0][0], places)
        steps = self._orthogonalize_momenta(torch.stack(own)) if own else None
        local = [_to_local(weight) for weight, _ in weights]
        decays = [1 - group["lr"] * group["weight_decay"] for _, group in weights]
        torch._foreach_mul_(local, decays)  # type: ignore
        empty = torch.empty(0, dtype=self.precision, device=local[0].device)
        updates = _send_from_owners(empty if steps is None else steps, len(weights), places)
        for (weight, group), shard, update in zip(weights, local, updates, strict=True):
            height, width = weight.shape
            shard.add_(update, alpha=-group["lr"] * max(1, height / width) ** 0.5)

    def _find_places(self, weight: Tensor) -> list[Place]:
        """Return the place of the shard of every process in matrices like `weight`."""
        key = tuple(weight.shape), getattr(weight, "placements", None)
        if key not in self._places:
            own = _find_own_place(weight)
            self._places[key] = places = [own] * _get_rank_and_world_size()[1]
            if len(places) > 1:
                dist.all_gather_object(places, own)
        return self._places[key]

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


def _find_own_place(weight: Tensor) -> Place:
    """Return the rows and columns of a matrix that are the shard of this process."""
    if not isinstance(weight, DTensor):
        return (0, weight.shape[0]), (0, weight.shape[1])
    ranges: list[tuple[int, int]] = []
    for dim, size in enumerate(weight.shape):
        # The placements of a vector of indices that is sharded like this dimension.
        placements: list[Placement] = [
            Replicate() if getattr(one, "dim", None) != dim else one if dim == 0 else Shard(0)
            for one in weight.placements
        ]
        indices = torch.arange(size, device=weight.device)
        own = distribute_tensor(indices, weight.device_mesh, placements, src_data_rank=None)
        part = own.to_local().tolist()
        ranges.append((part[0], part[-1] + 1) if part else (0, 0))
    return ranges[0], ranges[1]


def _send_to_owners(
    shards: Sequence[Tensor], weight: Tensor, places: Sequence[Place]
) -> list[Tensor]:
    """Send shards of n matrices like `weight` to their owners. All processes call this function.

    The owner of matrix i is process i modulo the number of processes. Returns the whole matrices of
    this process. If several processes have the same shard, the first of them sends it.
    """
    rank, size = _get_rank_and_world_size()
    if not isinstance(weight, DTensor):  # every process has all matrices
        return list(shards[rank::size])
    is_sender = [places.index(place) == number for number, place in enumerate(places)]
    nothing = shards[0].new_empty(0)
    sent = [
        torch.cat([nothing, *(shard.flatten() for shard in shards[owner::size])])
        if is_sender[rank]
        else nothing
        for owner in range(size)
    ]
    own = [shards[0].new_empty(weight.shape) for _ in shards[rank::size]]
    sizes = [len(own) * _count_elements(place) for place in places]
    received = _all_to_all(sent, [n if sends else 0 for n, sends in zip(sizes, is_sender)])
    for part, sends, ((top, bottom), (left, right)) in zip(received, is_sender, places):
        if sends:
            parts = part.view(len(own), bottom - top, right - left)
            for whole, shard in zip(own, parts, strict=True):
                whole[top:bottom, left:right] = shard
    return own


def _send_from_owners(updates: Tensor, count: int, places: Sequence[Place]) -> list[Tensor]:
    """Send each process its shards of `count` updates. All processes call this function.

    `updates` are the whole updates of the matrices that this process owns (see `_send_to_owners`);
    an empty tensor if it owns none. Returns the shards of this process, in the order of the
    matrices.
    """
    rank, size = _get_rank_and_world_size()
    if size == 1:
        return list(updates)
    sent = [
        updates[:, top:bottom, left:right].flatten() if len(updates) else updates
        for (top, bottom), (left, right) in places
    ]
    owned = [len(range(owner, count, size)) for owner in range(size)]
    received = _all_to_all(sent, [n * _count_elements(places[rank]) for n in owned])
    (top, bottom), (left, right) = places[rank]
    shards = [updates] * count
    for owner, part in enumerate(received):
        shards[owner::size] = part.view(owned[owner], bottom - top, right - left).unbind()
    return shards


def _all_to_all(sent: Sequence[Tensor], sizes: list[int]) -> Sequence[Tensor]:
    """Send the vector `sent[i]` to process i. Returns the vectors from all, of the given sizes."""
    received = sent[0].new_empty(sum(sizes))
    dist.all_to_all_single(received, torch.cat(list(sent)), sizes, [len(one) for one in sent])
    return received.split(sizes)


def _count_elements(place: Place) -> int:
    """Return the number of elements of a shard."""
    (top, bottom), (left, right) = place
    return (bottom - top) * (right - left)


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
