"""Nothing that is read can run code; durations come from a clock that never jumps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trivium"
RUN_CODE = {"eval", "exec", "compile", "os.system", "os.popen", "torch.save", "torch.jit.load"}
UNPICKLE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
# The error that a refused pickle raises.
ALLOWED = {"pickle", "pickle.UnpicklingError"}
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}


def calls_and_names(file: Path) -> Iterator[tuple[str, ast.AST]]:
    """(dotted name, node) of all calls, attributes and imported modules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node), node
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def test_nothing_that_is_read_can_run_code():
    broken = []
    for file in (f for folder in ("src", "benchmarks") for f in (ROOT / folder).rglob("*.py")):
        for name, node in calls_and_names(file):
            options = {o.arg: o.value for o in node.keywords} if isinstance(node, ast.Call) else {}
            safe = ast.unparse(options.get("weights_only", ast.Constant(None))) == "True"
            if (
                (isinstance(node, ast.Call) and name in RUN_CODE)
                or (name.split(".")[0] in UNPICKLE and name not in ALLOWED)
                or (isinstance(node, ast.Call) and name == "torch.load" and not safe)
                or ast.unparse(options.get("allow_pickle", ast.Constant(False))) != "False"
                or "trust_remote_code" in options
            ):
                broken.append(f"{file.relative_to(ROOT)}:{node.lineno} {name}")  # type: ignore
    assert not broken, "\n".join(broken)


def test_runs_do_not_read_the_clock_on_the_wall():
    """It jumps: by hand, by NTP, in a virtual machine that was suspended."""
    broken = [
        f"{file.relative_to(ROOT)} {name}"
        for package in ("data", "train", "workflows")
        for file in (SOURCE / package).rglob("*.py")
        for name, _ in calls_and_names(file)
        if name in WALL_CLOCK
    ]
    assert not broken, "\n".join(broken)
