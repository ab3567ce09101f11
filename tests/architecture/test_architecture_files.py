"""What holds for every file: its length, its public names, its examples, its silence."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import trivium
from trivium.train.recipe import load_recipe, shipped_recipes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trivium"
LONGEST = 500
TEXTS = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".ini", ""}
# Absolute paths into somebody's own machine.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|mnt|work|workspace)/\w")

MODULES = sorted(
    [
        "trivium",
        *(found.name for found in pkgutil.walk_packages(trivium.__path__, "trivium.")),
    ]
)
PACKAGES = [name for name in MODULES if hasattr(importlib.import_module(name), "__path__")]


def our_files() -> list[Path]:
    """Every text file that belongs to the project."""
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", "docs", ".ci")]
    found = [path for folder in folders if folder.is_dir() for path in folder.rglob("*")]
    found += [path for path in ROOT.iterdir() if path.name != ".git"]
    return sorted(
        path
        for path in found
        if path.is_file()
        and path.suffix in TEXTS
        and not any(part == "__pycache__" or "egg-info" in part for part in path.parts)
        and "samples" not in path.parts
    )


def test_files_stay_short():
    folders = [ROOT / name for name in ("src", "tests", "benchmarks")]
    files = [file for folder in folders if folder.is_dir() for file in folder.rglob("*.py")]
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    long = {str(f.relative_to(ROOT)): n for f, n in lengths.items() if n > LONGEST}
    assert not long, f"over {LONGEST} lines: {long}"


def test_test_files_have_names_of_their_own():
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_no_file_speaks_of_a_machine():
    broken = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in our_files()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if MACHINE_PATH.search(line) and "MACHINE_PATH" not in line
    ]
    assert not broken, broken


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_those_that_can_be_imported(name):
    package = importlib.import_module(name)
    assert package.__doc__ or not Path(str(package.__file__)).read_text("utf-8").strip()
    listed = getattr(package, "__all__", [])
    assert len(listed) == len(set(listed))
    for public in listed:
        assert getattr(package, public) is not None
        assert public in dir(package)
    if name != "trivium":  # its names are loaded when asked for
        assert re_exported(package) <= set(listed)


def re_exported(package) -> set[str]:
    """Names that a package takes from its own modules and does not use itself."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.__name__)
        for alias in node.names
    } - used


def test_an_unknown_public_name_suggests_the_nearest():
    with pytest.raises(AttributeError, match="pretrain"):
        trivium.pretrian  # noqa: B018


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in MODULES
        if ">>> " in Path(str(importlib.import_module(name).__file__)).read_text("utf-8")
    ],
)
def test_the_examples_in_docstrings_are_true(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads(name):
    recipe = load_recipe(name)
    assert recipe.spec.num_parameters > 0
    assert recipe.objective.kind is None or recipe.spec.heads


def test_there_are_recipes():
    assert "textbook-bert" in shipped_recipes()
