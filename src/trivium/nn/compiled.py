"""Functions of tensors that PyTorch compiles to C++, kept for other days.

`torch.export` and AOTInductor: a call runs no Python. Where weights drive Python's objects out of
the caches of a CPU, that takes as long as the products themselves.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from trivium.errors import TriviumError

Run = Callable[[list[Tensor]], list[Tensor]]
"""A compiled function: what it takes, and what it gives."""

Sizes = tuple[int, ...]
"""Dimensions of a tensor."""


def compiled(
    module: nn.Module,
    given: Sequence[Tensor],
    varying: Sequence[Sizes],
    *,
    of: nn.Module | None = None,
) -> Run:
    """A module in C++, compiled now or on an earlier day.

    Args:
        module: a function of `*tensors` alone: what it keeps itself is not read.
        given: examples of what it takes. Sizes that vary must all be different, and none 1.
        varying: of each of them, the dimensions that may have other sizes.
        of: the module that it makes a function of, if it is that of another.

    Raises:
        TriviumError: PyTorch cannot compile it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = compiled_folder()
            package = folder / f"{_name(module, given, varying, of)}.pt2"
            if package.exists():
                with suppress(RuntimeError):  # it may be damaged
                    return _loaded(package)
            program = _exported(module, given, varying)
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as beside:
                whole = Path(beside, package.name)
                torch._inductor.aoti_compile_and_package(program, package_path=str(whole))
                os.replace(whole, package)
            return _loaded(package)
    except Exception as error:  # whatever a compiler may say
        reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise TriviumError(
            f"PyTorch could not compile a layer: {reason} Go on without compiling."
        ) from error


def written_down(x: Tensor) -> Tensor:
    """The same, which a compiler makes once: else it may make it again in every loop that reads it.

    It writes down what is taken by strides.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def form(x: Tensor) -> str:
    """What a compiled layer takes for granted of a tensor."""
    return f"{x.shape} {x.stride()} {x.dtype}"


def compiled_folder() -> Path:
    """Where compiled layers are kept for other days."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "trivium", "compiled")


def has_compiler() -> bool:
    """Whether there is what PyTorch compiles with."""
    named = os.environ.get("CXX")
    names = [named.split()[0]] if named else ["g++", "clang++", "cl"]
    return any(shutil.which(name) for name in names)


def _loaded(package: Path) -> Run:
    return torch._inductor.aoti_load_package(str(package)).loader.run


def _exported(
    module: nn.Module, given: Sequence[Tensor], varying: Sequence[Sizes]
) -> torch.export.ExportedProgram:
    sizes = tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) for each in varying)
    program = torch.export.export(module, tuple(given), dynamic_shapes=(sizes,), strict=False)
    if program.constants:
        raise TriviumError(f"it reads what is no weight, {list(program.constants)}.")
    return program


def _name(
    module: nn.Module, given: Sequence[Tensor], varying: Sequence[Sizes], of: nn.Module | None
) -> str:
    """What names a compiled function: all that it is made of, and what for.

    PyTorch's own graph of it would say the same, but takes seconds to draw.
    """
    modules = [*module.named_modules(), *(of.named_modules() if of is not None else ())]
    parts = [f"{name} {type(each)} {_settings(each)}" for name, each in modules]
    parts += [f"{form(x)} {sizes}" for x, sizes in zip(given, varying, strict=True)]
    parts += [_sources(), torch.__version__, str(torch.get_num_threads())]
    parts += [_processor(), torch.backends.cpu.get_cpu_capability()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _settings(module: nn.Module) -> str:
    """All that a module's code may depend on, but for tensors and other modules."""
    known = ((name, value) for name, value in vars(module).items() if not isinstance(value, Tensor))
    plain = {name: repr(value) for name, value in known if name not in _MODULE}
    return re.sub(" at 0x[0-9a-f]+", "", str(sorted(plain.items())))


# What every module has, of which its name and its tensors say enough.
_MODULE = frozenset(vars(nn.Module())) - {"training"}


@functools.cache
def _sources() -> str:
    """The code that layers are made of, by rooms: a function may call any other there."""
    package, rooms = Path(__file__).parents[1], ("spec", "nn", "models", "adapt")
    files = sorted(file for room in rooms for file in (package / room).glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@functools.cache
def _processor() -> str:
    """What instructions there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
