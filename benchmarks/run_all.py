"""Run every benchmark and write what it printed, with the machine, into RESULTS.md.

A program's last output replaces the one before, between two marks that name the program; what
else stands in the file stays.

    python benchmarks/run_all.py                        # all of them
    python benchmarks/run_all.py train_throughput.py --pairs 3
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
_HEADING = "## As last run by `make bench`\n"


def machine() -> str:
    """Processor, accelerator and versions in one line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = re.findall(r"model name\s*: (.+)", info.read_text())
        cpu = names[0] if names else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    return f"{cpu}, {os.cpu_count()} cores{gpu}, {versions}"


def run(program: Path, arguments: list[str]) -> str:
    """What a program prints; it is shown while it comes."""
    print(f"== {program.name}", flush=True)
    lines = []
    command = [sys.executable, str(program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(f"{program.name} ended with {process.returncode}; nothing was written.")
    return "".join(lines).rstrip()


def write(program: Path, arguments: list[str], output: str) -> None:
    """Put the output in its place in RESULTS.md."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else "# Results\n"
    begin, end = f"<!-- {program.name} -->", f"<!-- end of {program.name} -->"
    command = " ".join(["python", f"benchmarks/{program.name}", *arguments])
    day = datetime.date.today().isoformat()
    block = f"{begin}\n`{command}`, {day}, {machine()}\n\n```\n{output}\n```\n{end}\n"
    if begin in text:
        before, rest = text.split(begin, 1)
        text = before + block + rest.split(end, 1)[1].lstrip("\n")
    else:
        heading = "" if _HEADING in text else f"\n{_HEADING}"
        text = f"{text.rstrip()}\n{heading}\n{block}"
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, RESULTS)


def main() -> None:
    if len(sys.argv) > 1:
        chosen = [(HERE / Path(sys.argv[1]).name, sys.argv[2:])]
    else:
        programs = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
        chosen = [(path, []) for path in programs]
    for program, arguments in chosen:
        write(program, arguments, run(program, arguments))


if __name__ == "__main__":
    main()
