"""The import rule: what each package may import, and what stays free of torch."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trivium"

# Package -> packages that it may import, and through them whatever those may.
MAY_IMPORT = {
    "errors": set(),
    "remote": {"errors"},
    "files": {"remote", "messages"},
    "choice": {"errors"},
    "config": {"choice"},
    "interrupts": set(),
    "messages": set(),
    "gpus": {"errors"},
    "progress": {"messages"},
    "text": {"files", "config", "progress"},
    "data": {"text"},
    "nn": {"config"},
    "models": {"nn"},
    "presets": {"models"},
    "spec": {"models"},
    "lazy_tensors": set(),
    "adapt": {"models", "lazy_tensors"},
    "bundled_models": set(),
    "interop": {"adapt", "text", "presets", "bundled_models"},
    "inference": {"models", "text", "interop"},
    "model_folder": {"models", "text", "interop"},
    "remote_model": {"model_folder"},
    "language_model": {"inference", "remote_model"},
    "model_loading": {"language_model"},
    "stored_model": {"model_loading"},
    "rewards": {"data", "model_loading"},
    "objectives": {"rewards"},
    "train": {"objectives", "stored_model", "progress", "gpus"},
    "plan": {"train"},
    "evaluate": {"objectives"},
    "report": {"text", "progress"},
    "workflows": {"train", "plan", "evaluate", "report"},
    "explain": {"workflows"},
    "serve": {"explain"},
    "studio": {"serve"},
}
# The public API and the command line may import every package.
UNLIMITED = {"__init__", "__main__", "cli"}
WITHOUT_TORCH = (
    "errors",
    "remote",
    "files",
    "choice",
    "config",
    "gpus",
    "messages",
    "progress",
    "text",
    "data",
    "report",
)
OPTIONAL = {
    "bitsandbytes",
    "pytorch_optimizer",
    "datasets",
    "datatrove",
    "fsspec",
    "gguf",
    "llguidance",
    "lm_eval",
    "nltk",
    "onnx_ir",
    "onnxruntime",
    "onnxruntime.quantization",
    "onnxscript",
    "py3langid",
    "pyarrow",
    "rouge_score",
    "sacrebleu",
    "scipy",
    "sentencepiece",
    "seqeval",
    "sklearn",
    "tensorboard",
    "torch.utils.tensorboard",
    "wandb",
}
# `serve` and `studio` are optional as a whole; its playground is optional to it.
OF_SERVE = {"fastapi", "gradio", "pandas", "prometheus_client", "starlette", "uvicorn"}
OPTIONAL_IN_SERVE = {"gradio", "trivium.serve.app", "trivium.serve.playground"}
# These load modules by name: the first two so that the command line starts without torch, the
# others for what is one module that no list names: kinds, presets, Hugging Face families, topics.
BY_NAME = {"__init__.py", "__main__.py", "cli/__init__.py", "choice.py", "explain/__init__.py"}


@dataclass(frozen=True)
class Import:
    """One import statement: the module it names, its line and whether a function holds it."""

    module: str
    file: Path
    line: int
    in_function: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(SOURCE)}:{self.line} imports {self.module}"


def imports_of(file: Path) -> Iterator[Import]:
    def walk(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            modules = []
            if isinstance(child, ast.Import):
                modules = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno} is a relative import"
                modules = [module_of(str(child.module), alias.name) for alias in child.names]
            for module in dict.fromkeys(modules):
                yield Import(module, file, child.lineno, in_function)
            yield from walk(child, in_function or function)

    yield from walk(ast.parse(file.read_text(encoding="utf-8")), False)


def module_of(package: str, name: str) -> str:
    """`from package import name`: the submodule of that name if there is one."""
    if not package.startswith("trivium"):
        return package
    folder = SOURCE.joinpath(*package.split(".")[1:])
    submodule = (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    return f"{package}.{name}" if submodule else package


def package_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def reachable(package: str) -> set[str]:
    """All packages that `package` may import."""
    result, waiting = set(), set(MAY_IMPORT[package])
    while waiting:
        result |= waiting
        waiting = set().union(*(MAY_IMPORT[name] for name in waiting)) - result
    return result


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("trivium", *(parts[:-1] if parts[-1] == "__init__" else parts)))


FILES = sorted(SOURCE.rglob("*.py"))
IMPORTS = [one for file in FILES for one in imports_of(file)]
LOCAL = [one for one in IMPORTS if one.module.split(".")[0] == "trivium"]


def test_every_package_has_a_row_and_no_row_a_cycle():
    assert {package_of(file) for file in FILES} - UNLIMITED <= MAY_IMPORT.keys()
    assert [name for name in MAY_IMPORT if name in reachable(name)] == []


def test_a_package_imports_only_what_its_row_allows():
    broken = []
    for one in LOCAL:
        package, parts = package_of(one.file), one.module.split(".")
        target = parts[1] if len(parts) > 1 else "__init__"
        if package not in UNLIMITED and target not in {package, *reachable(package)}:
            broken.append(str(one))
    assert not broken, "\n".join(broken)


def test_nothing_inside_imports_the_names_for_users():
    assert [
        str(one) for one in LOCAL if one.module == "trivium.spec" and one.file.name != "__init__.py"
    ] == []


def test_no_cycle_of_modules_and_no_type_checking_import():
    graph: dict[str, set[str]] = {module_name(file): set() for file in FILES}
    for one in LOCAL:
        graph[module_name(one.file)].add(one.module)
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())
    hidden = [
        f for f in FILES if "TYPE_CHECKING" in f.read_text("utf-8") and f.name != "__init__.py"
    ]
    assert hidden == []


def test_only_optional_dependencies_are_imported_in_functions_and_they_only_there():
    """Commands, too, import in functions: what needs torch, so that their help does not."""

    def is_optional(module: str, names: set[str]) -> bool:
        return any(module == name or module.startswith(f"{name}.") for name in names)

    optional = OPTIONAL | OPTIONAL_IN_SERVE
    inside = [i for i in IMPORTS if i.in_function and package_of(i.file) != "cli"]
    broken = [str(i) for i in inside if not is_optional(i.module, optional)]
    broken += [str(i) for i in IMPORTS if is_optional(i.module, OPTIONAL) and not i.in_function]
    assert not broken, "\n".join(broken)


def test_modules_are_loaded_by_name_only_where_discovered_or_the_start_must_be_fast():
    for file in FILES:
        if file.relative_to(SOURCE).as_posix() in BY_NAME:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).split(".")[-1]
                assert name not in ("import_module", "__import__"), f"{file}:{node.lineno}"


def test_dependencies_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        requirement.split(">")[0].split("=")[0].split("[")[0].replace("-", "_")
        for requirement in project["dependencies"]
    }
    known = declared | OPTIONAL | {"trivium", "pydantic_core"} | sys.stdlib_module_names
    broken = [
        str(one)
        for one in IMPORTS
        if one.module.split(".")[0]
        not in known | (OF_SERVE if package_of(one.file) in ("serve", "studio") else set())
    ]
    assert not broken, "\n".join(broken)


def test_text_and_data_start_without_torch():
    """In a fresh interpreter, so that imports of imports count."""
    modules = [
        module_name(file)
        for file in FILES
        if package_of(file) in WITHOUT_TORCH or file == SOURCE / "cli" / "__init__.py"
    ]
    program = "; ".join(
        [
            "import importlib, sys",
            f"[importlib.import_module(name) for name in {modules}]",
            "sys.exit('torch' in sys.modules)",
        ]
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr or "torch was imported"
