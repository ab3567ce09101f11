"""The machine: device, precision, memory, peak speed."""

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
"""The precisions of activations; processes that differ take the last of theirs."""

# How much faster bfloat16 must be to be chosen.
_CLEARLY = 1.1
# FLOPs of a product that is measured; how often, and in how many seconds at most but for the first.
_MEASURED_FLOPS, _MEASURED_ROUNDS, _MEASURED_SECONDS = 100_000_000, 10, 0.2
# Height and width of its matrix at most; rows of the first products, and how many times slower than
# another a setting may be there: CPUs that emulate bfloat16 take a hundred times as long.
_LARGEST_MEASURED, _FEW_ROWS, _HOPELESS = 2048, 64, 8
# Variables of the environment by which users set the number of threads.
_THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
_ASSUMED_MEMORY = 8 * 2**30
_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_THRESHOLD = -1, -3


def choose_device(name: str) -> torch.device:
    """The device called `name`, as `find_device` gives it.

    Of several processes on a machine, which `torchrun` starts, each takes a GPU of its own.
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
    """How products are computed.

    Args:
        precision: of activations.
        threads: of this process on a CPU.
        gflops: of linear layers on a core of a CPU by precision ("bf16", "fp32"), where measured.
    """

    precision: torch.dtype
    threads: int
    gflops: Mapping[str, float] = field(default_factory=dict)


def choose_arithmetic(
    precision: str, device: torch.device, model: nn.Module, kept: Mapping[str, Any]
) -> Arithmetic:
    """Precision and threads of a run; on a CPU those that are measured to be faster for its model.

    Args:
        precision: "bf16", "fp16", "fp32" or "auto": on CUDA bfloat16 or else float16, where tensor
            cores have them; on a CPU bfloat16 or float32, by the products of the model's largest
            matrix, forward and backward.
        device: of the run.
        model: whose matrices count, on any device, with `blocks`.
        kept: facts of the run so far, which a resumed run keeps on the same device.

    Raises:
        RecipeError: the device cannot train the model in this precision.
    """
    if kept.get("device") != describe_device(device):
        kept = {}
    if precision == "auto":
        precision = kept.get("precision", precision)
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
        shapes = [p.shape for block in blocks for p in block.parameters() if p.ndim == 2]
        height, width = max(shapes, key=math.prod, default=(256, 256))
        if not _THREADS & os.environ.keys():
            threads = min(threads, kept.get("threads") or _fastest_threads(height, width, threads))
        fastest = "fp32"
        if precision == "auto":
            speeds = measure_products(height, width, (("bf16", threads), ("fp32", threads)))
            gflops = {name: round(speed, 1) for (name, _), speed in speeds.items()}
            fastest = "bf16" if gflops["bf16"] > _CLEARLY * gflops["fp32"] else "fp32"
    return Arithmetic(PRECISIONS[fastest if precision == "auto" else precision], threads, gflops)


def _has_lstm(model: nn.Module) -> bool:
    return any(isinstance(part, nn.LSTM) for part in model.modules())


def precision_name(precision: torch.dtype) -> str:
    """Return the name of a precision, as recipes have it."""
    return next(name for name, dtype in PRECISIONS.items() if dtype is precision)


def _fastest_threads(height: int, width: int, most: int) -> int:
    """Threads whose products are fastest: fewer than `most` where others use the cores.

    Threads wait for each other in every operation, so that a busy core stops all of them: the mean
    by the clock counts, and more threads have to be clearly faster.
    """
    fewer, *more = [("fp32", n) for n in sorted({1, max(1, most // 2), most})]
    if not more:
        return most
    speeds = measure_products(height, width, (fewer, *more), time.perf_counter, fmean)
    for setting in more:
        if speeds[setting] > _CLEARLY * speeds[fewer]:
            fewer = setting
    return fewer[1]


@cache
def measure_products(
    height: int,
    width: int,
    settings: tuple[tuple[str, int], ...],
    clock: Callable[[], float] = time.process_time,
    average: Callable[[list[float]], float] = min,
) -> dict[tuple[str, int], float]:
    """GFLOP/s of a linear layer, forward and backward, on a CPU, measured for some milliseconds.

    Args:
        height, width: of its matrix, of which at most 2,048 are taken.
        settings: precision ("bf16", "fp32") and threads; they take turns, so that other load on
            the machine meets all of them.
        clock: seconds of all threads, without those in which other processes have the cores, or
            `time.perf_counter`.
        average: of the times measured, by default the best.
    """
    height, width = min(height, _LARGEST_MEASURED), min(width, _LARGEST_MEASURED)
    rows = max(512, min(2048, _MEASURED_FLOPS // (2 * height * width)))
    weight = torch.ones(height, width, requires_grad=True)
    # The first time of every size is that of a cold start; the second shows what is hopeless.
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
    """The name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "mps, on which Trivium is untried"
    # Not every release of PyTorch has the function.
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return str(capabilities.get("cpu_name", "cpu"))


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory, instead of mapping and zeroing fresh pages for each tensor.

    Every training step allocates the same tensors again; with the default thresholds the
    kernel hands out new pages each time. Does nothing where the C library is another.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(_MALLOC_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_MALLOC_TRIM_THRESHOLD, (1 << 31) - 1)


def free_memory(device: torch.device) -> int:
    """Bytes that a run may use now: of the machine, and no more than its control group allows."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_available_memory(), _control_group_memory())


def _available_memory() -> int:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # No such file (not Linux): assume a small machine.
    return _ASSUMED_MEMORY


def _control_group_memory(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes left below the limits of a container or job (version 2); huge without one.

    Every group from the process's own up to the root has a limit. The page cache of files, which
    the kernel gives up first, does not count as used.
    """
    group = root
    with suppress(OSError, ValueError):
        lines = own.read_text(encoding="ascii").splitlines()
        group = root / next((one[4:] for one in lines if one.startswith("0::/")), "")
    left = 2**62
    while group.is_relative_to(root):
        with suppress(OSError, ValueError, KeyError):  # no such file, or "max"
            most, used = (int((group / f"memory.{one}").read_text()) for one in ("max", "current"))
            statistics = (group / "memory.stat").read_text().splitlines()
            cached = int(dict(line.split() for line in statistics)["inactive_file"])
            left = min(left, max(0, most - used + cached))
        group = group.parent
    return left


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak FLOP/s of matmuls: a GPU's data sheet, or a CPU measured for milliseconds.

    None if the peak is not known, and for float16 on a CPU, whose products have no steady speed.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return next((gpu.peak_flops for gpu in GPUS.values() if gpu.device in name), None)
    if device.type != "cpu" or dtype is torch.float16:
        return None
    setting = (precision_name(dtype), torch.get_num_threads())
    return 1e9 * measure_products(1024, 1024, (setting,), time.perf_counter)[setting]
