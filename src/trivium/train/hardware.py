"""The hardware of a run: device, precision, CPU threads, free memory and peak FLOP/s."""

from __future__ import annotations

import ctypes
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from trivium.errors import RecipeError
from trivium.gpus import GPUS
from trivium.model_loading import find_device

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""The dtypes of activations, by name.

If processes choose different dtypes, the run uses the one that comes last here.
"""

# The minimum speedup for choosing bfloat16, or more threads.
_CLEARLY = 1.1
# The FLOPs of a measured matmul, the number of measurements, and their time limit in seconds.
_MEASURED_FLOPS, _MEASURED_ROUNDS, _MEASURED_SECONDS = 100_000_000, 10, 0.2
# The maximum height and width of the measured matrix; the rows of the first matmuls; and the
# slowdown in the first matmuls at which the measurement ends. CPUs that emulate bfloat16 are a
# hundred times slower.
_LARGEST_MEASURED, _FEW_ROWS, _HOPELESS = 2048, 64, 8
# Environment variables with which users set the number of threads.
_THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
_ASSUMED_MEMORY = 8 * 2**30
_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_THRESHOLD = -1, -3
_SMALL_ALLOCATION = 1 << 20  # bytes


def choose_device(name: str) -> torch.device:
    """Return the device with this name; "auto" chooses the best available device.

    If `torchrun` starts several processes on a machine, each process gets its own GPU. Raises
    RecipeError if the device is not available, or if there are more processes than GPUs.
    """
    local_rank, gpus = os.environ.get("LOCAL_RANK"), torch.cuda.device_count()
    if local_rank is None or not gpus or name.partition(":")[0] not in ("auto", "cuda"):
        return find_device(name)
    number = int(local_rank)
    if number >= gpus:
        raise RecipeError(
            f"process {number + 1} of this machine has no GPU, which has {gpus}: start at most so "
            f"many, torchrun --nproc-per-node {gpus}, or set train.device=cpu."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


@dataclass(frozen=True)
class Arithmetic:
    """The precision and the number of CPU threads of a run.

    Args:
        precision: the dtype of activations.
        threads: the number of CPU threads of this process.
        gflops: the measured GFLOP/s of linear layers on the CPU, by precision ("bf16", "fp32");
            empty if not measured.
    """

    precision: torch.dtype
    threads: int
    gflops: Mapping[str, float] = field(default_factory=dict)


def choose_precision(
    precision: str, device: torch.device, model: nn.Module, metadata: Mapping[str, Any]
) -> Arithmetic:
    """Choose the precision and the number of CPU threads of a run.

    Args:
        precision: "bf16", "fp16", "fp32" or "auto". On CUDA, "auto" means the first of bfloat16 and
            float16 that the GPU's tensor cores support, or else float32. On a CPU, "auto" means the
            faster of bfloat16 and float32, measured with matmuls of the model's largest matrix.
        device: the device of the run.
        model: a module with `blocks`, from which the largest matrix is selected. It may be on any
            device.
        metadata: the metadata of the run so far. A resumed run on the same device reuses the
            earlier choices.

    Raises:
        RecipeError: the device cannot train the model in this precision.
    """
    if metadata.get("device") != describe_device(device):
        metadata = {}
    if precision == "auto":
        precision = metadata.get("precision", precision)
    if precision == "fp16" and device.type == "cpu" and _has_lstm(model):
        raise RecipeError(
            'train.precision = "fp16" on a CPU is not for LSTMs, which PyTorch does not compute in '
            "float16 there: leave train.precision out."
        )
    if precision == "fp16" and device.type == "cpu":
        warnings.warn(
            "train.precision = fp16 is slow on a CPU, far slower than fp32: it is meant for GPUs "
            "without bf16.",
            stacklevel=2,
        )
    threads, gflops = torch.get_num_threads(), {}
    if device.type != "cpu":
        fastest = "fp32"
        if device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)
            fastest = "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"
    else:
        blocks: Iterable[nn.Module] = model.blocks  # type: ignore[assignment]
        parts = [part for block in blocks for part in block.modules()]
        own = (p for part in parts for p in part.parameters(recurse=False))
        shapes = [p.shape for p in own if p.ndim == 2 and p.is_floating_point()]
        # Quantised matrices have other shapes in memory.
        linear = (part for part in parts if isinstance(part, nn.Linear))
        shapes += [torch.Size((part.out_features, part.in_features)) for part in linear]
        height, width = max(shapes, key=math.prod, default=(256, 256))
        if not _THREADS & os.environ.keys():
            threads = min(
                threads, metadata.get("threads") or _choose_num_threads(height, width, threads)
            )
        fastest = "fp32"
        if precision == "auto":
            speeds = measure_matmuls(height, width, (("bf16", threads), ("fp32", threads)))
            gflops = {name: round(speed, 1) for (name, _), speed in speeds.items()}
            fastest = "bf16" if gflops["bf16"] > _CLEARLY * gflops["fp32"] else "fp32"
    return Arithmetic(PRECISIONS[fastest if precision == "auto" else precision], threads, gflops)


def _has_lstm(model: nn.Module) -> bool:
    """Return whether a model contains an LSTM."""
    return any(isinstance(part, nn.LSTM) for part in model.modules())


def precision_name(precision: torch.dtype) -> str:
    """Return the name that recipes use for a dtype, such as "bf16"."""
    return next(name for name, dtype in PRECISIONS.items() if dtype is precision)


def _choose_num_threads(height: int, width: int, max_threads: int) -> int:
    """Return the number of CPU threads, at most `max_threads`, with which matmuls are fastest.

    If other programs use the cores, fewer threads are faster: threads wait for each other in every
    operation, so that one busy core stops all of them. Therefore the mean wall-clock time decides,
    and more threads are chosen only if they are clearly faster. `height` and `width` are the size
    of the weight matrix.
    """
    fewer, *more = [("fp32", n) for n in sorted({1, max(1, max_threads // 2), max_threads})]
    if not more:
        return max_threads
    speeds = measure_matmuls(height, width, (fewer, *more), time.perf_counter, fmean)
    for setting in more:
        if speeds[setting] > _CLEARLY * speeds[fewer]:
            fewer = setting
    return fewer[1]


@cache
def measure_matmuls(
    height: int,
    width: int,
    settings: tuple[tuple[str, int], ...],
    clock: Callable[[], float] = time.process_time,
    average: Callable[[list[float]], float] = min,
) -> dict[tuple[str, int], float]:
    """Measure the speed of a linear layer on the CPU for each setting.

    A forward and backward pass is timed, which takes some milliseconds. If one setting is much
    slower than another, the measurement ends after two short matmuls.

    Args:
        height: the height of the weight matrix, limited to 2,048.
        width: the width of the weight matrix, limited to 2,048.
        settings: pairs of a precision ("bf16", "fp32") and a number of threads. They are measured
            in turn, so that other load on the machine affects all of them.
        clock: returns the time in seconds: the CPU time of all threads (default), or the wall-clock
            time with `time.perf_counter`.
        average: reduces the measured times to a single time; by default the shortest.

    Returns:
        The speed of each setting in GFLOP/s.
    """
    height, width = min(height, _LARGEST_MEASURED), min(width, _LARGEST_MEASURED)
    rows = max(512, min(2048, _MEASURED_FLOPS // (2 * height * width)))
    weight = torch.ones(height, width, requires_grad=True)
    # The first measurement of every size is a warm-up; the second shows which setting is hopeless.
    sizes = [_FEW_ROWS, _FEW_ROWS, *[rows] * _MEASURED_ROUNDS]
    seconds: dict[tuple[str, int], list[float]] = {setting: [] for setting in settings}
    before, began = torch.get_num_threads(), time.perf_counter()
    try:
        for number, size in enumerate(sizes):
            x = torch.ones(size, width, requires_grad=True)
            for name, threads in settings:
                torch.set_num_threads(threads)
                start = clock()
                with torch.autocast("cpu", PRECISIONS[name], enabled=name != "fp32"):
                    y = nn.functional.linear(x, weight)
                torch.autograd.grad(y, (x, weight), torch.ones_like(y))
                seconds[name, threads].append(max(clock() - start, 1e-9) / size)
            last = [times[-1] for times in seconds.values()]
            is_hopeless = number == 1 and max(last) > _HOPELESS * min(last)
            if is_hopeless or (number > 2 and time.perf_counter() - began > _MEASURED_SECONDS):
                break
    finally:
        torch.set_num_threads(before)
    return {
        one: 6e-9 * height * width / average(times[3:] or times[1:])
        for one, times in seconds.items()
    }


def describe_device(device: torch.device) -> str:
    """Return the name of the device's hardware, such as the model of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "mps, on which Trivium is untried"
    # Not all releases of PyTorch have this function.
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return str(capabilities.get("cpu_name", "cpu"))


def keep_freed_memory() -> None:
    """Configure glibc to keep freed memory, instead of mapping new pages for each tensor.

    Every training step allocates tensors of the same sizes. With glibc's default thresholds, the
    kernel would map and zero new pages each time. Does nothing with other C libraries.
    """
    _set_malloc_thresholds(1 << 30, (1 << 31) - 1)


def return_freed_memory() -> None:
    """Configure glibc to return the memory of a tensor to the system as soon as it is freed.

    FSDP gathers a block, uses it and frees it. If glibc kept this memory, fragmentation would more
    than double the peak memory of a process on a CPU. Does nothing with other C libraries.
    """
    _set_malloc_thresholds(_SMALL_ALLOCATION, _SMALL_ALLOCATION)


def _set_malloc_thresholds(mapped: int, trimmed: int) -> None:
    """Set two thresholds of glibc in bytes.

    Allocations of at least `mapped` bytes are memory-mapped one by one, and returned to the system
    when they are freed. If more than `trimmed` bytes at the end of the heap are free, they are
    returned, too.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(_MALLOC_MMAP_THRESHOLD, mapped)
        library.mallopt(_MALLOC_TRIM_THRESHOLD, trimmed)


def available_memory(device: torch.device) -> int:
    """Return the number of bytes of device memory that are available to a run.

    On a CPU, this is the available memory of the machine, limited by the control groups (cgroups)
    of the process.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_available_host_memory(), _available_cgroup_memory())


def _available_host_memory() -> int:
    """Return the available memory of the machine in bytes."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # The file does not exist (not Linux): assume a small machine.
    return _ASSUMED_MEMORY


def _available_cgroup_memory(
    cgroup_root: Path = Path("/sys/fs/cgroup"), process_cgroup: Path = Path("/proc/self/cgroup")
) -> int:
    """Return the number of bytes left within the memory limits of a container or job (cgroups v2).

    Every control group from the process's own up to the root may have a limit. The page cache does
    not count as used, since the kernel frees it first. Returns a huge number if there is no limit.

    Args:
        cgroup_root: the folder in which cgroups are mounted.
        process_cgroup: the file that names the control group of this process.
    """
    group = cgroup_root
    with suppress(OSError, ValueError):
        lines = process_cgroup.read_text(encoding="ascii").splitlines()
        group = cgroup_root / next((one[4:] for one in lines if one.startswith("0::/")), "")
    left = 2**62
    while group.is_relative_to(cgroup_root):
        with suppress(OSError, ValueError, KeyError):  # no such file, or "max"
            most, used = (int((group / f"memory.{one}").read_text()) for one in ("max", "current"))
            statistics = (group / "memory.stat").read_text().splitlines()
            cached = int(dict(line.split() for line in statistics)["inactive_file"])
            left = min(left, max(0, most - used + cached))
        group = group.parent
    return left


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak FLOP/s of matmuls on a device, or None if the peak is unknown.

    For a GPU, the peak is taken from its data sheet. For a CPU, the peak is measured, which takes
    some milliseconds. For float16 on a CPU, the speed of matmuls varies, and the peak is unknown.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return next((gpu.peak_flops for gpu in GPUS.values() if gpu.device in name), None)
    if device.type != "cpu" or dtype is torch.float16:
        return None
    setting = (precision_name(dtype), torch.get_num_threads())
    return 1e9 * measure_matmuls(1024, 1024, (setting,), time.perf_counter)[setting]
