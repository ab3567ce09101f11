"""The machine: device, precision, memory, peak speed."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trivium.errors import RecipeError
from trivium.train.gpus import GPUS

_ASSUMED_MEMORY = 8 * 2**30
_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_THRESHOLD = -1, -3


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is the first accelerator there is, else the CPU.

    Of several processes on a machine, which `torchrun` starts, each takes a GPU of its own.
    """
    device = _device_named(name)
    local_rank = os.environ.get("LOCAL_RANK")
    if device.type == "cpu" or local_rank is None:
        return device
    number, gpus = int(local_rank), torch.cuda.device_count()
    if number >= gpus:
        raise RecipeError(
            f"process {number + 1} of this machine has no GPU, which has {gpus}: start at most so "
            f"many, torchrun --nproc-per-node {gpus}, or set train.device=cpu."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RecipeError(f'train.device is "auto", "cpu" or "cuda"; not "{name}".') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RecipeError('train.device = "cuda", but PyTorch sees no CUDA device; use "auto".')
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """What activations are computed in: "auto" is bfloat16 where the hardware multiplies it."""
    if name == "auto":
        return torch.bfloat16 if has_native_bf16(device) else torch.float32
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[name]


def has_native_bf16(device: torch.device) -> bool:
    """Whether bfloat16 products run in hardware, and not by widening to float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = _cpu_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _cpu_capabilities() -> Mapping[str, Any]:
    """What PyTorch reports about the CPU; nothing where this release has no such function."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def describe_device(device: torch.device) -> str:
    """The name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(_cpu_capabilities().get("cpu_name", "cpu"))


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory, instead of mapping and zeroing fresh pages for each tensor.

    Every training step allocates the same tensors again; with the default thresholds the
    kernel hands out new pages each time. Does nothing where the C library is another.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(_MALLOC_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_MALLOC_TRIM_THRESHOLD, (1 << 31) - 1)
    except (OSError, AttributeError):
        return


def free_memory(device: torch.device) -> int:
    """Bytes that a run may use now: of the machine, and no more than its control group allows."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_available_memory(), _control_group_memory())


def _available_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # No such file (not Linux): assume a small machine.
    return _ASSUMED_MEMORY


def _control_group_memory(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes left below the limits of a container or job (version 2 and 1); huge without one.

    Every group from the process's own up to the root has a limit. The page cache of files, which
    the kernel gives up first, does not count as used.
    """
    try:
        lines = own.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        lines = []
    left = 2**62
    for line in ["0::/", *lines]:
        _, controllers, path = line.split(":", 2)
        unified = controllers == ""
        if not unified and "memory" not in controllers.split(","):
            continue
        top = root if unified else root / "memory"
        group = top / path.lstrip("/")
        while group.is_relative_to(top):
            left = min(left, _group_memory(group, unified=unified))
            group = group.parent
    return left


def _group_memory(group: Path, *, unified: bool) -> int:
    """Bytes left below the limit of one control group; huge where it has none."""
    limit, used, cached = (
        ("memory.max", "memory.current", "inactive_file")
        if unified
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    try:
        left = int((group / limit).read_text()) - int((group / used).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, left + int(statistics[cached]))
    except (OSError, ValueError, KeyError):  # no such file, or "max"
        return 2**62


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of matrix products: a GPU's data sheet, a CPU measured for milliseconds, or None."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return next((gpu.peak_flops for gpu in GPUS.values() if gpu.device in name), None)
    if device.type != "cpu":
        return None
    size = 1024
    a, b = (torch.ones(size, size, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
