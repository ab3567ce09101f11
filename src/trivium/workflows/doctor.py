"""Describes the installation and the machine, for `trivium doctor` and for bug reports."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

import torch
from packaging.requirements import Requirement
from torch import nn

from trivium.train import hardware

EXTRAS = (
    *("metrics", "serve", "playground", "hub", "parquet", "clean", "sentencepiece"),
    *("tensorboard", "wandb", "qlora", "structured", "optimizers", "lm-eval", "gguf", "onnx"),
)
"""The extras for users, in the order in which they are listed."""

_PROGRAM = "trivium"
# The speed is measured with square matrices of this size on a CPU and on a GPU.
_CPU_SIZE, _GPU_SIZE, _GPU_ROUNDS = 1024, 4096, 20
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TRIVIUM_LANGUAGE")
_COMPILERS = ("c++", "g++", "clang++", "cl")


def describe_installation() -> dict[str, Any]:
    """Describe the installed libraries, the machine and its measured speed.

    The result contains no paths, user names or host names. It can be written as JSON. Its keys are:

    - `trivium`, `python`, `system`: versions.
    - `libraries`: the version of each required library; None if it is missing or too old.
    - `extras`: for each extra, `installed` (the version of each library) and `missing` (the
      requirements whose libraries are not installed or too old).
    - `device`: `kind` ("cpu", "cuda", "mps"), `name`, `gpus` (the number of GPUs that PyTorch
      finds) and `cuda` (the CUDA version that PyTorch was built for, or None).
    - `precision`: the precision that training chooses on this device.
    - `gflops`: the measured GFLOP/s of matrix products, by precision.
    - `cores`, `threads`: the number of cores that this process may use, and of CPU threads that
      training chooses.
    - `variables`: environment variables that are set and change the above.
    - `memory`: `available` and `total` bytes of the device.
    - `compiler`: the C++ compiler that `--compile` uses on a CPU, or None.
    """
    device = hardware.choose_device("auto")
    blocks = nn.ModuleList([nn.Linear(_CPU_SIZE, _CPU_SIZE, bias=False)])
    arithmetic = hardware.choose_precision("auto", device, _Model(blocks), {})
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "trivium": version(_PROGRAM),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        "libraries": {one.name: _find_version(one) for one in _read_requirements("")},
        "extras": {name: _describe_extra(name) for name in EXTRAS},
        "device": {
            "kind": device.type,
            "name": hardware.describe_device(device),
            "gpus": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
        },
        "precision": hardware.precision_name(arithmetic.precision),
        "gflops": _measure_speed(device, arithmetic),
        "cores": cores,
        "threads": arithmetic.threads,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "memory": {
            "available": hardware.available_memory(device),
            "total": _get_total_memory(device),
        },
        "compiler": next((name for name in _COMPILERS if shutil.which(name)), None),
    }


class _Model(nn.Module):
    """A stand-in model of linear layers, to choose the precision as a training run does."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks = blocks


def _read_requirements(extra: str) -> Iterator[Requirement]:
    """Yield the required libraries of an extra, or of the core if `extra` is "".

    An extra that contains another extra, such as `trivium[serve]`, also yields that extra's
    libraries.
    """
    for text in requires(_PROGRAM) or ():
        one = Requirement(text)
        in_core = one.marker is None or one.marker.evaluate({"extra": ""})
        in_extra = one.marker is not None and one.marker.evaluate({"extra": extra})
        if not (in_extra and not in_core if extra else in_core):
            continue
        if one.name == _PROGRAM:
            for inner in sorted(one.extras):
                yield from _read_requirements(inner)
        else:
            yield one


def _find_version(requirement: Requirement) -> str | None:
    """Return the installed version of a library, or None if it is missing or too old."""
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return None
    return found if requirement.specifier.contains(found, prereleases=True) else None


def _describe_extra(name: str) -> dict[str, Any]:
    """Return the libraries of an extra that are installed, and those that are missing."""
    found = {one: _find_version(one) for one in _read_requirements(name)}
    return {
        "installed": {one.name: known for one, known in found.items() if known is not None},
        "missing": [f"{one.name}{one.specifier}" for one, known in found.items() if known is None],
    }


def _measure_speed(device: torch.device, arithmetic: hardware.Arithmetic) -> dict[str, float]:
    """Measure the speed of matrix products in GFLOP/s.

    Returns the speed by precision: on a CPU for float32 and bfloat16, otherwise only for the
    precision that training chooses.
    """
    if device.type == "cpu":
        settings = tuple((name, arithmetic.threads) for name in ("fp32", "bf16"))
        speeds = hardware.measure_matmuls(_CPU_SIZE, _CPU_SIZE, settings, time.perf_counter)
        return {name: round(speed, 1) for (name, _), speed in speeds.items()}
    x = torch.ones(_GPU_SIZE, _GPU_SIZE, device=device, dtype=arithmetic.precision)
    seconds = 0.0
    for _ in range(2):  # the first round is a warm-up
        torch.accelerator.synchronize()
        began = time.perf_counter()
        for _ in range(_GPU_ROUNDS):
            torch.matmul(x, x)
        torch.accelerator.synchronize()
        seconds = time.perf_counter() - began
    speed = 2e-9 * _GPU_SIZE**3 * _GPU_ROUNDS / seconds
    return {hardware.precision_name(arithmetic.precision): round(speed, 1)}


def _get_total_memory(device: torch.device) -> int | None:
    """Return the memory of the device in bytes, or None if it cannot be determined."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
