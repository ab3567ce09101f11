"""Run every benchmark and write what it printed, with the machine, into RESULTS.md.

A program's last output replaces the one before, between two marks that name the program; the rest
of the file stays. `gpu.py` is not among them: it needs a GPU and writes files of its own.

    python benchmarks/run_all.py                              # all of them
    python benchmarks/run_all.py train_throughput.py --rounds 5
"""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

from side_by_side import machine

from trivium.files import write_file

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
PROGRAMS = (
    "train_throughput",
    "time_to_loss",
    "time_to_bleu",
    "passes",
    "finetune",
    "generate",
    "serve_load",
    "onnx_files",
    "forecast",
    "host_memory",
    "checkpoint_time",
    "labelled_data",
    "llama_cpp",
    "model_size",
    "rows",
    "scaling",
    "large_corpus",
    "loss_bands",
    "windows",
    "widths",
    "scan",
    "attention",
    "sums",
    "sentiment",
    "loss_curves",
    "translators",
)


def run(program: Path, arguments: list[str]) -> str:
    """The output of a program, which is also shown as it comes."""
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
    return "".join(lines).strip()


def with_output(text: str, program: Path, arguments: list[str], output: str) -> str:
    """The text of RESULTS.md with the output of a program in its place."""
    begin, end = f"<!-- {program.name} -->", f"<!-- end of {program.name} -->"
    command = " ".join(["python", f"benchmarks/{program.name}", *arguments])
    day = datetime.date.today().isoformat()
    block = f"{begin}\n`{command}`, {day}, {machine()}\n\n{output}\n{end}\n"
    if begin not in text:
        return f"{text.rstrip()}\n\n{block}"
    before, rest = text.split(begin, 1)
    return before + block + rest.split(end, 1)[1].lstrip("\n")


def main() -> None:
    if len(sys.argv) > 1:
        jobs = [(HERE / Path(sys.argv[1]).name, sys.argv[2:])]
    else:
        jobs = [(HERE / f"{name}.py", []) for name in PROGRAMS]
    for program, arguments in jobs:
        output = run(program, arguments)
        text = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else "# Results\n"
        write_file(RESULTS, with_output(text, program, arguments, output))


if __name__ == "__main__":
    main()
