"""Put every change of mutations.toml into a copy of src, and say which ones no test notices.

python tests/mutate.py [WORD ...] [--all]: of the mutations whose package or file has one of the
words. The copy is in a temporary folder, so that the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
_ONE = ("-m", "not gpu and not course")  # slow tests, too
_LIMIT = 3600
"""Seconds; a change that makes a test run on is noticed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="packages or parts of files; default: all")
    parser.add_argument("--all", action="store_true", help="run the fast suite, not the one test")
    options = parser.parse_args()
    mutations = [
        mutation
        for mutation in load_mutations()
        if not options.words or any(word in mutation["file"] for word in options.words)
    ]
    if not mutations:
        parser.error("no mutation is of these packages or files")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        tests = sorted({mutation["test"] for mutation in mutations})
        if not passes([*tests, *_ONE], source):
            print("the tests fail without a mutation: mend them first")
            return 2
        number, living = Counter[str](), Counter[str]()
        for mutation in mutations:
            path = source / "trivium" / mutation["file"]
            text = path.read_text("utf-8")
            path.write_text(text.replace(mutation["old"], mutation["new"]), "utf-8")
            tests = ["tests", "-n", "2"] if options.all else [mutation["test"], *_ONE]
            lives = passes(tests, source)
            path.write_text(text, "utf-8")
            number[mutation["package"]] += 1
            living[mutation["package"]] += lives
            print(f"{'LIVES  ' if lives else 'noticed'} {mutation['file']}: {mutation['what']}")
    for package, count in sorted(number.items()):
        print(f"{package:14} {count - living[package]} of {count} noticed")
    return int(living.total() > 0)


def load_mutations() -> list[dict[str, str]]:
    """The entries of mutations.toml."""
    text = (ROOT / "tests" / "mutations.toml").read_text("utf-8")
    return tomllib.loads(text)["mutation"]


def passes(arguments: list[str], source: Path) -> bool:
    """Whether pytest passes with `trivium` from this folder."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    try:
        return not subprocess.run(
            command, cwd=ROOT, env=environment, timeout=_LIMIT, capture_output=True, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    sys.exit(main())
