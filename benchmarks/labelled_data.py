"""Labelled data: seconds until the first step, and memory of each process.

The rows are classified texts of 12 words in JSON lines, or pairs of such responses, for which a
reference model of 7 million parameters is computed before the first step. Every number of processes
starts the same fine-tuning twice: first without a cache, then with the cache that the first start
has left. A start with a thousand rows shows what a process needs without the data.

CPU seconds are those of rank 0, which also does what is done once. Memory is the memory that rank 0
shares with no other process (RssAnon of Linux), at the first step.

    python benchmarks/labelled_data.py --rows 1000000 --processes 1 2 4
    python benchmarks/labelled_data.py --task preference --rows 5000 --processes 1 2
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from side_by_side import machine

FEW_ROWS = 1000
MODELS = {"classification": "bert-tiny", "preference": "gpt2-mini"}


def write_rows(path: Path, count: int, task: str = "classification") -> None:
    """Write `count` labelled texts, or pairs of responses, all different, to a JSON Lines file."""
    random.seed(0)
    words = [f"{start}{end}" for start in ("lo", "mi", "ra", "te") for end in ("n", "sk", "da", "")]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            text = f"{number} {' '.join(random.choices(words, k=12))}"
            label = ("good", "bad", "mixed")[number % 3]
            row = {"text": text, "label": label}
            if task == "preference":
                row = {"prompt": label, "chosen": text, "rejected": text[::-1]}
            file.write(json.dumps(row) + "\n")


def private_memory() -> float:
    """Return the memory in MB that this process shares with no other."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    [kilobytes] = re.findall(r"RssAnon:\s+(\d+) kB", status)
    return int(kilobytes) / 1024


def train(options: argparse.Namespace) -> None:
    """Run one process of a start up to its first step. Rank 0 measures it."""
    import trivium

    changes = ["train.steps=1", "train.precision=fp32", "train.eval_examples=64"]
    changes += ["train.micro_batch_tokens=4096", 'parallel.data="ddp"', 'train.device="cpu"']
    changes += ["data.length=128"] if options.task == "preference" else []
    begin, measured = (time.monotonic(), time.process_time()), list[float]()

    class FirstStep(trivium.Callback):
        """Measures the process when the first step begins."""

        def on_start(self, batch: Any, lm: Any) -> None:
            seconds, cpu = time.monotonic() - begin[0], time.process_time() - begin[1]
            measured.extend([seconds, cpu, private_memory()])

    trivium.finetune(
        options.task,
        model=str(options.model),
        data=str(options.data),
        out=options.out,
        changes=changes,
        callbacks=[FirstStep()],
    )
    if measured:  # rank 0
        options.out.with_suffix(".json").write_text(json.dumps(measured))


def start(
    task: str, model: Path, data: Path, out: Path, processes: int, cache: Path
) -> tuple[float, float, float]:
    """Start a fine-tuning. Returns the seconds, processor seconds and MB of rank 0."""
    worker = [__file__, "--task", task, "--model", str(model), "--data", str(data)]
    worker += ["--out", str(out)]
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRIVIUM_CACHE": str(cache)}
    environment["RAYON_NUM_THREADS"] = "1"
    subprocess.run([*launcher, *worker], env=environment, check=True, capture_output=True)
    seconds, cpu, memory = json.loads(out.with_suffix(".json").read_text())
    return seconds, cpu, memory


def main() -> None:
    """Measure every number of processes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=MODELS, default="classification")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    for name in ("--model", "--data", "--out"):  # given to the processes of a start
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        return train(options)
    import trivium

    print(machine() + "\n")
    columns = "seconds", "CPU seconds", "MB", f"CPU seconds, MB of {FEW_ROWS:,} rows"
    print(f"| processes | start | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, many, model = folder / "few.jsonl", folder / "many.jsonl", folder / "model"
        write_rows(few, FEW_ROWS, options.task)
        write_rows(many, options.rows, options.task)
        changes = ["train.steps=1", 'train.device="cpu"', "tokenizer.vocab_size=300"]
        trivium.finetune(
            options.task, model=MODELS[options.task], data=str(few), out=model, changes=changes
        )
        for processes in options.processes:
            for kind in ("first", "second"):
                cache, out = folder / f"cache-{processes}", folder / f"{processes}-{kind}"
                few_out = out.with_name(f"{out.name}-few")
                setting = options.task, model
                _, few_cpu, few_memory = start(*setting, few, few_out, processes, cache)
                seconds, cpu, memory = start(*setting, many, out, processes, cache)
                cells = (
                    f"{seconds:.1f} | {cpu:.1f} | {memory:.0f} | {few_cpu:.1f}, {few_memory:.0f}"
                )
                print(f"| {processes} | {kind} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
