"""Every fault of an earlier version has tests that would find it again."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = tomllib.loads((ROOT / "tests" / "faults.toml").read_text("utf-8"))["fault"]


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_tests_of_every_fault_exist():
    numbers = [int(number) for number in FAULTS]
    assert numbers == sorted(numbers)
    for number, fault in FAULTS.items():
        assert fault["what"].endswith("."), number
        assert fault["tests"], number
        for test in fault["tests"]:
            file, _, name = test.partition("::")
            assert name in functions_of(file), test
