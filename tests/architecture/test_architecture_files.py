"""Checks of every file: names of modules, examples in docstrings, no paths of a machine."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import trivium
from trivium.train.recipe_loading import builtin_recipes, load_recipe

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trivium"
TEXTS = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".ini", ".jinja2", ".css", ""}
# Absolute paths into somebody's own machine.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|mnt|work|workspace)/\w")
FILES = sorted(SOURCE.rglob("*.py"))


def project_files() -> list[Path]:
    """Every text file that belongs to the project."""
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", "docs", ".ci")]
    files = [path for folder in folders if folder.is_dir() for path in folder.rglob("*")]
    files += [path for path in ROOT.iterdir() if path.name != ".git"]
    generated = re.compile(r"__pycache__|egg-info|samples|vendor|\.coverage")
    return sorted(
        path
        for path in files
        if path.is_file() and path.suffix in TEXTS and not generated.search(path.as_posix())
    )


def test_no_two_modules_or_public_classes_have_one_name():
    """A command's module has the name of what it calls, those of a Hugging Face family, of
    a kind of part and of a topic that is explained their own."""
    named_alike = {"cli", "families", "topics", "mixers", "positions", "feed_forwards", "heads"}
    files = [f for f in FILES if f.stem != "__init__" and f.parent.name not in named_alike]
    modules = Counter(f.stem for f in files)
    assert [name for name, count in modules.items() if count > 1] == []
    classes = Counter(
        node.name
        for file in FILES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []
    tests = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in tests.items() if count > 1] == []


def test_no_file_names_a_path_of_a_machine():
    broken = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in project_files()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if MACHINE_PATH.search(line) and "MACHINE_PATH" not in line
    ]
    assert not broken, broken


def test_public_names_can_be_imported():
    assert {"LanguageModel", "load", "pretrain", "finetune", "presets"} <= set(dir(trivium))
    for found in pkgutil.walk_packages(trivium.__path__, "trivium."):
        module = importlib.import_module(found.name)
        listed = getattr(module, "__all__", [])
        assert len(listed) == len(set(listed)), found.name
        assert [name for name in listed if not hasattr(module, name)] == [], found.name
    with pytest.raises(AttributeError, match="pretrain"):
        trivium.pretrian  # noqa: B018


def test_the_examples_in_docstrings_are_true():
    attempted = 0
    for file in FILES:
        if ">>> " not in file.read_text(encoding="utf-8"):
            continue
        parts = file.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(("trivium", *(part for part in parts if part != "__init__")))
        results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert results.failed == 0, name
        attempted += results.attempted
    assert attempted > 20


def test_every_shipped_recipe_loads():
    assert "textbook-bert" in builtin_recipes()
    for name in builtin_recipes():
        assert load_recipe(name).objective.kind


def test_direct_dependencies_are_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = {canonicalize_name(Requirement(line).name) for group in groups for line in group}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert needed - {canonicalize_name(one.name) for one in pinned} == {"trivium"}
    assert {operator.operator for one in pinned for operator in one.specifier} == {"=="}


def test_docstrings_name_arguments_that_exist():
    """`Args:` of a function names its parameters; of a class, its fields or those of `__init__`.

    The fields of base classes in the same file count, too.
    """
    wrong = []
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                described = described_arguments(ast.get_docstring(node) or "")
                bases = [classes.get(ast.unparse(base)) for base in getattr(node, "bases", ())]
                known = parameters(node).union(*(parameters(base) for base in bases if base))
                for name in described - known:
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}: {name}")
    assert not wrong, wrong


def described_arguments(docstring: str) -> set[str]:
    """The names before a colon in the section `Args:`."""
    section = re.search(r"^Args:\n((?: {4}.*\n?)+)", docstring, re.MULTILINE)
    entries = re.findall(r"^ {4}(\*{0,2}\w[\w, *]*):", section[1] if section else "", re.MULTILINE)
    return {name.strip().lstrip("*") for entry in entries for name in entry.split(",")}


def parameters(node: ast.AST) -> set[str]:
    """The parameters of a function; the fields of a class and the parameters of its methods."""
    if isinstance(node, ast.ClassDef):
        names = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}  # type: ignore
        init = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        return names.union(*map(parameters, init))
    arguments = node.args  # type: ignore[attr-defined]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {each.arg for each in [*every, arguments.vararg, arguments.kwarg] if each is not None}
