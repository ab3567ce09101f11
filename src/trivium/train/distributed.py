"""The processes of a run, on PyTorch's distributed engine, and how they divide the work.

`torchrun` starts the processes and sets RANK, WORLD_SIZE and LOCAL_RANK. They form a device mesh of
`replica` x `shard` x `tensor`. Processes along the first two axes, together `data`, take different
micro-batches; those along `shard` may divide the weights, those along `tensor` share every layer.
Models know nothing of it. A step has the same micro-batches whatever the number of processes, so
that the loss curve is the same, too.
"""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trivium.errors import RecipeError, TrainingError
from trivium.nn.blocks import Block, Residual
from trivium.train.tensor_parallel import parallelize
from trivium.train.train_config import ParallelConfig

# The time limit of a step's collectives: a process that hangs ends the run.
_TIMEOUT = timedelta(minutes=30)
# The time limit on the host, where others wait while the first process prepares or evaluates.
_HOST_TIMEOUT = timedelta(days=1)

T = TypeVar("T")


@dataclass(frozen=True)
class Parallel:
    """The processes of a run, as one of them sees them; by default there is only one.

    Args:
        rank: the number of this process, from 0; the first process writes and prints.
        size: the number of processes.
        local_size: the number of processes on this machine.
        mesh: the device mesh with the axes "replica", "shard" and "tensor"; None for one process.
        data: the axes "replica" and "shard" of the mesh as one axis.
        host_group: the process group for decisions and waiting of the host.
        checkpoint_group: the process group for checkpoints, which are written in the background.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    mesh: DeviceMesh | None = None
    data: DeviceMesh | None = None
    host_group: Any = None
    checkpoint_group: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    @property
    def data_size(self) -> int:
        """The number of processes, or of tensor-parallel groups, with different micro-batches."""
        return 1 if self.data is None else self.data.size()

    @property
    def data_rank(self) -> int:
        """The number of this process, or of its group, along `data`."""
        return 0 if self.data is None else self.data.get_local_rank()

    def shard(self, items: Sequence[T]) -> Iterator[tuple[int, T, float]]:
        """Yield (number, item, weight) of this process's part: every `data_size`-th item.

        All processes get the same number of items, since they gather weights together. Where there
        are too few items, one is repeated with weight 0; all other weights are 1.
        """
        for start in range(0, len(items), self.data_size):
            number = start + self.data_rank
            if number < len(items):
                yield number, items[number], 1.0
            else:
                yield start, items[start], 0.0

    def all_reduce(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums of scalars over the processes along `data`."""
        if self.data is None or self.data_size == 1 or not terms:
            return terms
        stacked = torch.stack(list(terms.values()))
        dist.all_reduce(stacked, group=self.data.get_group())
        return dict(zip(terms, stacked, strict=True))

    def all_reduce_sum(self, *counts: int) -> list[int]:
        """Return the sums of the host's integers over the processes along `data`."""
        if self.size == 1:
            return list(counts)
        sums = self._on_host(counts, torch.int64, dist.ReduceOp.SUM)
        return [total // (self.size // self.data_size) for total in sums]

    def all_reduce_max(self, *values: float) -> list[float]:
        """Return the maximum of every value over all processes, so that they decide alike.

        Raises TrainingError if another process has ended; that process reports the reason.
        """
        if self.size == 1:
            return list(values)
        return self._on_host(values, torch.float64, dist.ReduceOp.MAX)

    def map(self, function: Callable[[Sequence[T]], list[Any]], items: Sequence[T]) -> list[Any]:
        """Return the results of all items; each process calls the function with its part."""
        ends = [len(items) * number // self.size for number in range(self.size + 1)]
        own = items[ends[self.rank] : ends[self.rank + 1]]
        results = function(own) if own else []
        if self.size == 1:
            return results
        parts: list[Any] = [None] * self.size
        with _error_of_others():
            dist.all_gather_object(parts, results, group=self.host_group)
        return [one for part in parts for one in part]

    def _on_host(self, values: Sequence[float], dtype: torch.dtype, operation: Any) -> list[Any]:
        numbers = torch.tensor(values, dtype=dtype)
        with _error_of_others():
            dist.all_reduce(numbers, operation, self.host_group)
        return numbers.tolist()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the first process run the block before the others, which read what it prepared."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.all_reduce_max(0.0)


SINGLE_PROCESS = Parallel()


@contextmanager
def _error_of_others() -> Iterator[None]:
    """Raise TrainingError if a process that this one waits for has ended."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError("another process of this run has ended.") from error


def join_processes(config: ParallelConfig, device: torch.device) -> Parallel:
    """Return the processes that `torchrun` started, once all have joined; else a single one.

    Raises:
        RecipeError: the number of processes cannot be divided as `config` says.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    groups = config.tensor * config.replicas
    if size % groups:
        raise RecipeError(
            f"parallel.replicas = {config.replicas} with parallel.tensor = {config.tensor} does "
            f"not divide {size} process{'es' if size > 1 else ''}: start a multiple of {groups} "
            "with torchrun --nproc-per-node N, or set them to divisors of the number."
        )
    if size == 1:
        return SINGLE_PROCESS
    if not dist.is_initialized():
        # What the host decides by is shared between hosts, without waiting for a GPU.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        device_id = device if device.type == "cuda" else None
        dist.init_process_group(
            backend,
            timeout=_TIMEOUT,
            store=_store_of_restart(),
            rank=int(os.environ["RANK"]),
            world_size=size,
            device_id=device_id,
        )
        atexit.register(dist.destroy_process_group)  # several runs of a program share it
    shape = (config.replicas, size // config.tensor // config.replicas, config.tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "shard", "tensor"))
    return Parallel(
        rank=dist.get_rank(),
        size=size,
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        mesh=mesh,
        data=mesh["replica", "shard"]._flatten("data"),
        host_group=dist.new_group(backend="gloo", timeout=_HOST_TIMEOUT),
        checkpoint_group=dist.new_group(backend="gloo", timeout=_HOST_TIMEOUT),
    )


def _store_of_restart() -> Store | None:
    """Return the store of workers that `torchrun` has restarted; None for the default store.

    PyTorch 2.13 gives restarted workers the store of the earlier workers, and they would wait for
    these. Here restarted workers get their own part of the store.

    Raises:
        RecipeError: the workers are on several machines, which count their restarts differently.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not shared or os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1":
        return None
    if int(os.environ["GROUP_WORLD_SIZE"]) > 1 and int(os.environ["TORCHELASTIC_MAX_RESTARTS"]):
        raise RecipeError(
            "--max-restarts on several machines needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the "
            "environment of torchrun: without it restarted workers would wait for dead ones."
        )
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    return PrefixStore(f"restart-{restarts}", store)


def parallelize_step(
    train_step: nn.Module,
    parallel: Parallel,
    config: ParallelConfig,
    *,
    precision: torch.dtype,
    device: torch.device,
    has_unused: bool = False,
) -> nn.Module:
    """Return the training step of this process; `train_step` itself for a single process.

    Args:
        train_step: a `TrainStep`, changed in place.
        parallel: the processes of the run.
        config: the section `[parallel]` with `data` decided.
        precision: the precision of activations, in which the matrices of blocks are gathered.
        device: the device of the model.
        has_unused: whether some steps do not use every weight.

    Raises:
        RecipeError: the layers of the model cannot be divided.
    """
    model = train_step.get_submodule("model")
    blocks: list[nn.Module] = list(model.blocks)  # type: ignore[arg-type]
    if parallel.mesh is not None and config.tensor > 1:
        parallelize(model, parallel.mesh["tensor"], sequence_parallel=config.sequence)
    if config.activation_checkpointing:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if parallel.mesh is None or parallel.data is None:
        return train_step
    if config.data == "ddp":
        train_step.to(device)
        return DistributedDataParallel(
            train_step,
            process_group=parallel.data.get_group(),
            gradient_as_bucket_view=True,
            find_unused_parameters=has_unused,
            broadcast_buffers=False,  # all processes set them from one seed and one tokenizer
        )
    # Of views that no operation changes in place, and of norms, reduced once along each axis.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    mesh = parallel.mesh["replica", "shard"] if config.replicas > 1 else parallel.mesh["shard"]
    policy = MixedPrecisionPolicy(precision, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks:
        if isinstance(block, Block) and precision is not torch.float32:
            # Autocast would convert these weights. Norms, embeddings and heads stay in float32.
            matrices = [part for part in block.children() if not isinstance(part, Residual)]
            fully_shard(matrices, mesh=mesh, mp_policy=policy)
        fully_shard(block, mesh=mesh)
    fully_shard(train_step, mesh=mesh)
    return train_step.to(device)


def reducing(train_step: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
    """Return a context for the gradients of a micro-batch; processes sum them in the last one.

    FSDP scatters the sums of every micro-batch among the shards, since no process has memory for
    all gradients. It sums replicas of shards in the last micro-batch.
    """
    if isinstance(train_step, FSDPModule):
        train_step.set_requires_all_reduce(is_last)
    is_ddp = isinstance(train_step, DistributedDataParallel)
    return train_step.no_sync() if is_ddp and not is_last else nullcontext()
