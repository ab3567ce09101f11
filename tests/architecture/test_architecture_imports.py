"""The rooms of the house: which may import which, and what none of them may import."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trivium"

# Room -> rooms it may import, and through them whatever those may.
ROOMS = {
    "errors": set(),
    "spec": {"errors"},
    "presets": {"spec"},
    "plan": {"spec", "presets"},
    "text": {"errors"},
    "data": {"text"},
    "nn": {"spec"},
    "models": {"nn"},
    "objectives": {"data", "models"},
    "optim": {"errors"},
    # A recipe names a preset.
    "train": {"objectives", "optim", "presets"},
    "adapt": {"models"},
    "interop": {"models", "text", "presets"},
    "inference": {"models", "text"},
    # `load` quantises.
    "language_model": {"inference", "interop", "adapt"},
    "evaluate": {"language_model", "data"},
    "workflows": {"train", "evaluate", "report", "adapt"},
    "report": {"errors"},
    # The playground shows curves of runs.
    "serve": {"language_model", "report"},
}
# The public face and the command line may import every room.
FACES = {"__init__", "__main__", "cli"}
WITHOUT_TORCH = ("errors", "spec", "presets", "text", "data", "report")
OPTIONAL = {
    "datasets",
    "huggingface_hub",
    "lm_eval",
    "matplotlib",
    "pyarrow",
    "rouge_score",
    "sacrebleu",
    "scipy",
    "sentencepiece",
    "seqeval",
    "sklearn",
    "tensorboard",
    "tiktoken",
}
# Rooms that are optional as a whole: without these parts importing one says what to install.
OPTIONAL_ROOMS = {"serve": {"fastapi", "gradio", "prometheus_client", "starlette", "uvicorn"}}
# The playground, whose Gradio is optional to the server.
OPTIONAL_MODULES = {"trivium.serve.borrowed", "trivium.serve.playground"}
# Only these load modules by name, so that the command line starts without torch.
LAZY = {"__init__.py", "cli/__init__.py"}


@dataclass(frozen=True)
class Import:
    """One import statement: the module it names, where it stands and how it is reached."""

    module: str
    file: Path
    line: int
    in_function: bool
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(SOURCE)}:{self.line} imports {self.module}"


def imports_of(file: Path) -> Iterator[Import]:
    def walk(node: ast.AST, in_function: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            modules = []
            if isinstance(child, ast.Import):
                modules = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno} is a relative import"
                assert child.module is not None
                modules = [module_of(child.module, alias.name) for alias in child.names]
            for module in dict.fromkeys(modules):
                yield Import(module, file, child.lineno, in_function, typing_only)
            yield from walk(child, in_function or function, typing_only or typing)

    yield from walk(ast.parse(file.read_text(encoding="utf-8")), False, False)


def module_of(package: str, name: str) -> str:
    """`from package import name`: the submodule of that name if there is one."""
    if not package.startswith("trivium"):
        return package
    folder = SOURCE.joinpath(*package.split(".")[1:])
    submodule = (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    return f"{package}.{name}" if submodule else package


def room_of(file: Path) -> str:
    first = file.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def reach(room: str) -> set[str]:
    """All rooms that `room` may import."""
    found, waiting = set(), set(ROOMS[room])
    while waiting:
        found |= waiting
        waiting = set().union(*(ROOMS[name] for name in waiting)) - found
    return found


FILES = sorted(SOURCE.rglob("*.py"))
IMPORTS = [one for file in FILES for one in imports_of(file)]
OURS = [one for one in IMPORTS if one.module.split(".")[0] == "trivium"]


def test_the_table_has_no_cycle():
    for room in ROOMS:
        assert room not in reach(room), f"{room} may import itself by way of others"


def test_every_room_is_in_the_table():
    unknown = {room_of(file) for file in FILES} - ROOMS.keys() - FACES
    assert not unknown, f"rooms without a row: {sorted(unknown)}"


def test_a_room_imports_only_what_its_row_allows():
    broken = []
    for one in OURS:
        room, parts = room_of(one.file), one.module.split(".")
        target = parts[1] if len(parts) > 1 else "__init__"
        if room in FACES or target == room:
            continue
        if target not in reach(room):
            broken.append(str(one))
    assert not broken, "\n".join(broken)


def test_modules_do_not_import_each_other_in_a_circle():
    names = {file: "trivium." + ".".join(module_parts(file)) for file in FILES}
    graph: dict[str, set[str]] = {name.rstrip("."): set() for name in names.values()}
    for one in OURS:
        if not one.typing_only:
            graph[names[one.file].rstrip(".")].add(one.module)
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def module_parts(file: Path) -> tuple[str, ...]:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def test_imports_inside_functions_are_of_optional_parts_only():
    allowed = OPTIONAL | OPTIONAL_MODULES | {"gradio", "torch.utils.tensorboard"}
    broken = [
        str(one)
        for one in IMPORTS
        if one.in_function
        and not any(one.module == name or one.module.startswith(f"{name}.") for name in allowed)
    ]
    assert not broken, "\n".join(broken)


def test_optional_parts_are_imported_inside_functions_only():
    broken = [
        str(one)
        for one in IMPORTS
        if one.module.split(".")[0] in OPTIONAL and not one.in_function and not one.typing_only
    ]
    assert not broken, "\n".join(broken)


def test_modules_are_loaded_by_name_only_where_the_command_line_needs_it():
    for file in FILES:
        if file.relative_to(SOURCE).as_posix() in LAZY:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).split(".")[-1]
                assert name not in ("import_module", "__import__"), f"{file}:{node.lineno}"


def test_third_parties_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        requirement.split(">")[0].split("=")[0].split("[")[0].replace("-", "_")
        for requirement in project["dependencies"]
    }
    known = declared | OPTIONAL | {"trivium"} | sys.stdlib_module_names
    broken = [
        str(one)
        for one in IMPORTS
        if not one.typing_only
        and one.module.split(".")[0] not in known | OPTIONAL_ROOMS.get(room_of(one.file), set())
    ]
    assert not broken, "\n".join(broken)


def test_text_data_and_descriptions_do_not_name_torch():
    broken = [
        str(one)
        for one in IMPORTS
        if room_of(one.file) in WITHOUT_TORCH and one.module.split(".")[0] == "torch"
    ]
    assert not broken, "\n".join(broken)


def test_text_data_and_descriptions_start_without_torch():
    """In a fresh interpreter, for what they import by way of others too."""
    modules = [
        ".".join(("trivium", *module_parts(file)))
        for file in FILES
        if room_of(file) in WITHOUT_TORCH or file == SOURCE / "cli" / "__init__.py"
    ]
    assert len(modules) > 20
    program = "; ".join(
        [
            "import importlib, sys",
            f"[importlib.import_module(name) for name in {modules}]",
            "sys.exit('torch' in sys.modules)",
        ]
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr or "torch was imported"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from trivium.nn import mask", ("trivium.nn.mask", False, False)),
        ("def f():\n    import torch.nn", ("torch.nn", True, False)),
        ("if TYPE_CHECKING:\n    import numpy", ("numpy", False, True)),
        ("class A:\n    def f(self):\n        from os import path", ("os", True, False)),
    ],
)
def test_the_reader_of_imports_sees_them(tmp_path, text, expected):
    file = tmp_path / "module.py"
    file.write_text(text)
    (found,) = imports_of(file)
    assert (found.module, found.in_function, found.typing_only) == expected
