"""The processes of a run and their parallelism, based on `torch.distributed`.

`torchrun` starts the processes and sets RANK, WORLD_SIZE and LOCAL_RANK. The processes form a
device mesh `replica` x `shard` x `tensor`. The dimensions `replica` and `shard` together are the
dimension `data`: their processes train on different micro-batches or, with context parallelism, on
different parts of the rows of a micro-batch. FSDP shards weights along `shard`, and tensor
parallelism splits every layer along `tensor`. Models contain no code for parallelism. A step has
the same micro-batches for any number of processes. Therefore, the loss curve is the same, too.
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
from trivium.train import hardware
from trivium.train.context_parallel import divide_rows
from trivium.train.starting_weights import PartsStartingWeights, StartingWeights
from trivium.train.tensor_parallel import parallelize
from trivium.train.train_config import ParallelConfig

# The timeout of collectives on the device: the run ends if a process hangs.
_TIMEOUT = timedelta(minutes=30)
# The timeout on the host, where other processes wait while rank 0 prepares data or evaluates.
_HOST_TIMEOUT = timedelta(days=1)

T = TypeVar("T")


@dataclass(frozen=True)
class Parallel:
    """The processes of a run, as seen from one of them. By default, there is only one process.

    Args:
        rank: the rank of this process, from 0. Only rank 0 writes files and prints.
        size: the number of processes (world size).
        local_size: the number of processes on this machine.
        mesh: the device mesh (replica x shard x tensor); None for one process.
        data: the processes whose gradients and losses are summed (replica and shard flattened);
            None for one process.
        context: the processes that share the rows of a micro-batch, which follow each other in
            `data`; None without context parallelism.
        host_group: the process group for collectives on the host (CPU).
        checkpoint_group: the process group for checkpoints, which are written in the background.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    mesh: DeviceMesh | None = None
    data: DeviceMesh | None = None
    context: DeviceMesh | None = None
    host_group: Any = None
    checkpoint_group: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this is the main process (rank 0), which writes files and prints."""
        return self.rank == 0

    @property
    def data_parallel_size(self) -> int:
        """The number of data-parallel ranks, which train on different micro-batches.

        With tensor or context parallelism, a data-parallel rank is a group of processes.
        """
        return self.gradient_group_size // self._context_size

    @property
    def data_parallel_rank(self) -> int:
        """The data-parallel rank of this process, or of its group of processes."""
        return 0 if self.data is None else self.data.get_local_rank() // self._context_size

    @property
    def gradient_group_size(self) -> int:
        """The number of processes over which DDP and FSDP average gradients."""
        return 1 if self.data is None else self.data.size()

    @property
    def _context_size(self) -> int:
        """The number of processes that share the rows of a micro-batch."""
        return 1 if self.context is None else self.context.size()

    def shard(self, items: Sequence[T]) -> Iterator[tuple[int, T, float]]:
        """Yield the items of this process as tuples (index, item, weight).

        A process gets every `data_parallel_size`-th item. All processes get the same number of
        items, since they participate in the same collectives. If there are too few items, a process
        gets an item of another process with weight 0. All other weights are 1.
        """
        for start in range(0, len(items), self.data_parallel_size):
            number = start + self.data_parallel_rank
            if number < len(items):
                yield number, items[number], 1.0
            else:
                yield start, items[start], 0.0

    def all_reduce(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum tensors of equal shape over the processes of `data`. Returns the sums by name."""
        if self.data is None or self.gradient_group_size == 1 or not terms:
            return terms
        stacked = torch.stack(list(terms.values()))
        dist.all_reduce(stacked, group=self.data.get_group())
        return dict(zip(terms, stacked, strict=True))

    def all_reduce_sum(self, *counts: int) -> list[int]:
        """Return the sum of each integer over the data-parallel processes, computed on the host."""
        if self.size == 1:
            return list(counts)
        sums = self._all_reduce_on_host(counts, torch.int64, dist.ReduceOp.SUM)
        return [total // (self.size // self.data_parallel_size) for total in sums]

    def all_reduce_max(self, *values: float) -> list[float]:
        """Return the maximum of each value over all processes, computed on the host.

        Raises TrainingError if another process has ended; that process reports the reason.
        """
        if self.size == 1:
            return list(values)
        return self._all_reduce_on_host(values, torch.float64, dist.ReduceOp.MAX)

    def map(self, function: Callable[[Sequence[T]], list[Any]], items: Sequence[T]) -> list[Any]:
        """Apply a function to a list in parallel. Returns the results for all items, in order.

        Each process calls `function` with a contiguous part of `items`. The results are gathered on
        every process.
        """
        own = self.own_part(items)
        return self.gather_results(function(own) if own else [])

    def own_part(self, items: Sequence[T]) -> Sequence[T]:
        """Return the contiguous part of `items` that this process computes in `map`."""
        first, last = (len(items) * number // self.size for number in (self.rank, self.rank + 1))
        return items[first:last]

    def gather_results(self, results: list[Any]) -> list[Any]:
        """Gather the results of all processes on every process, in the order of the processes."""
        if self.size == 1:
            return results
        parts: list[Any] = [None] * self.size
        with _raise_if_process_ended():
            dist.all_gather_object(parts, results, group=self.host_group)
        return [one for part in parts for one in part]

    def _all_reduce_on_host(
        self, values: Sequence[float], dtype: torch.dtype, operation: Any
    ) -> list[Any]:
        """Reduce each value over all processes on the host, with `operation`."""
        numbers = torch.tensor(values, dtype=dtype)
        with _raise_if_process_ended():
            dist.all_reduce(numbers, operation, self.host_group)
        return numbers.tolist()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Context manager that runs the block on rank 0 first, then on the other processes.

        The other processes can then read files that rank 0 prepared.
        """
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        self.all_reduce_max(0.0)


SINGLE_PROCESS = Parallel()


@contextmanager
def _raise_if_process_ended() -> Iterator[None]:
    """Context manager that raises TrainingError if a collective fails.

    A collective on the host fails if another process has ended.
    """
    try:
        yield
    except RuntimeError as error:
        raise TrainingError("another process of this run has ended.") from error


def join_processes(config: ParallelConfig, device: torch.device) -> Parallel:
    """Join the process group of the processes that `torchrun` started.

    Returns the processes of the run. Without `torchrun`, the run has a single process.

    Raises:
        RecipeError: the number of processes is not a multiple of `tensor` times `context` times
            `replicas`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    groups = config.tensor * config.context * config.replicas
    if size % groups:
        shared = "context" if config.context > 1 else "tensor"
        raise RecipeError(
            f"parallel.replicas = {config.replicas} with parallel.{shared} = "
            f"{max(config.tensor, config.context)} does "
            f"not divide {size} process{'es' if size > 1 else ''}: start a multiple of {groups} "
            "with torchrun --nproc-per-node N, or set them to divisors of the number."
        )
    if size == 1:
        return SINGLE_PROCESS
    if not dist.is_initialized():
        # Gloo exchanges values between hosts, without waiting for a GPU.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        device_id = device if device.type == "cuda" else None
        dist.init_process_group(
            backend,
            timeout=_TIMEOUT,
            store=_create_restart_store(),
            rank=int(os.environ["RANK"]),
            world_size=size,
            device_id=device_id,
        )
        atexit.register(dist.destroy_process_group)  # several runs in one program share the group
    shape = (config.replicas, size // config.tensor // config.replicas, config.tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "shard", "tensor"))
    context = None
    if config.context > 1:  # without tensor parallelism, so the ranks are those of `data`
        shape = (size // config.context, config.context)
        context = init_device_mesh(device.type, shape, mesh_dim_names=("data", "context"))
    return Parallel(
        rank=dist.get_rank(),
        size=size,
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        mesh=mesh,
        data=mesh["replica", "shard"]._flatten("data"),
        context=None if context is None else context["context"],
        host_group=dist.new_group(backend="gloo", timeout=_HOST_TIMEOUT),
        checkpoint_group=dist.new_group(backend="gloo", timeout=_HOST_TIMEOUT),
    )


def _create_restart_store() -> Store | None:
    """Create the key-value store with which restarted `torchrun` workers find each other.

    PyTorch 2.13 gives restarted workers the store of the earlier workers. They would then wait for
    workers that no longer exist. Therefore, restarted workers use their own key prefix in this
    store. Returns None if PyTorch's default store works.

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
    weights: StartingWeights | PartsStartingWeights | None = None,
) -> nn.Module:
    """Apply the layout of `[parallel]` to a training step.

    The layout is DDP or FSDP, and may have tensor or context parallelism, and activation
    checkpointing. Returns the wrapped step, or `train_step` itself for a single process.

    Args:
        train_step: a `TrainStep`, which is changed in place.
        parallel: the processes of the run.
        config: the section `[parallel]`, in which `data` is set.
        precision: the dtype of activations. FSDP also gathers the matrices of blocks in this dtype.
        device: the device of the model.
        has_unused: whether some steps do not use every weight.
        weights: the weights to load into a model on the meta device: into the whole model with DDP,
            and into its shards otherwise. None if the model has its weights.

    Raises:
        RecipeError: tensor parallelism cannot split the layers of the model.
    """
    model: Any = train_step.get_submodule("model")
    blocks: list[nn.Module] = list(model.blocks)
    if parallel.mesh is not None and config.tensor > 1:
        parallelize(model, parallel.mesh["tensor"], sequence_parallel=config.sequence)
    if parallel.context is not None:
        divide_rows(train_step, parallel.context)
    if config.activation_checkpointing:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if parallel.mesh is None or parallel.data is None:
        return train_step
    if config.data == "ddp":
        if weights is not None:
            weights.load_into(model, device)
        train_step.to(device)
        # PyTorch 2.13 recommends an option that would also broadcast the buffers at the start.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        return DistributedDataParallel(
            train_step,
            process_group=parallel.data.get_group(),
            gradient_as_bucket_view=True,
            find_unused_parameters=has_unused,
            broadcast_buffers=False,  # buffers are equal: same seed, same tokenizer
        )
    hardware.return_freed_memory()
    # Harmless warnings: about views that are never changed in place, and about the gradients of
    # norms, which are reduced once along each axis.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    mesh = parallel.mesh["replica", "shard"] if config.replicas > 1 else parallel.mesh["shard"]
    policy = MixedPrecisionPolicy(precision, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks:
        if isinstance(block, Block) and precision is not torch.float32:
            # Autocast would cast these weights. Norms, embeddings and heads stay in float32.
            matrices = [part for part in block.children() if not isinstance(part, Residual)]
            fully_shard(matrices, mesh=mesh, mp_policy=policy)
        fully_shard(block, mesh=mesh)
    fully_shard(train_step, mesh=mesh)
    if weights is not None:
        weights.load_into(model, device)
    return train_step.to(device)


def gradient_sync(
    train_step: nn.Module, *, is_last: bool, reduce_once: bool
) -> AbstractContextManager[None]:
    """Return a context manager for the forward and backward pass of a micro-batch.

    It controls when gradients are communicated. DDP all-reduces the gradients only in the last
    micro-batch of a step (`is_last`). FSDP reduce-scatters the gradients in every micro-batch, so
    that no process needs memory for a full copy of them, or, with `reduce_once`, only in the last
    one. With HSDP, the replicas all-reduce them only in the last micro-batch.
    """
    if isinstance(train_step, FSDPModule):
        if reduce_once:
            train_step.set_requires_gradient_sync(is_last)
        train_step.set_requires_all_reduce(is_last)
    is_ddp = isinstance(train_step, DistributedDataParallel)
    return train_step.no_sync() if is_ddp and not is_last else nullcontext()
