"""Two processes on two cores against one process pinned to one core.

Tokens/s of the same run (DDP, gloo), and how much of the communication of gradients a trace shows
at the same time as the backward pass. Linux; needs two cores with nothing else at work.

    python benchmarks/scaling.py --model gpt2-mini --steps 30 --rounds 3
    python benchmarks/scaling.py --trace trace.json      # to look at in ui.perfetto.dev
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from side_by_side import machine, tokens_per_second

LENGTH = 128


def train(options: argparse.Namespace) -> None:
    """One process of a run; the first one of several also writes a trace of its last steps."""
    import trivium

    changes = [
        f"train.steps={options.warmup + options.steps}",
        f"train.batch_tokens={options.rows * LENGTH}",
        f"train.micro_batch_tokens={options.rows * LENGTH // 2}",
        f"data.length={LENGTH}",
        "train.log_every=1",
        "train.eval_every=1000000",
        "train.save_every=1000000",
        'parallel.data="ddp"',
        'train.device="cpu"',
    ]
    if options.trace and os.environ.get("RANK") == "0":
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            trivium.pretrain(options.model, data=options.data, out=options.out, changes=changes)
        profiler.export_chrome_trace(str(options.trace))
    else:
        trivium.pretrain(options.model, data=options.data, out=options.out, changes=changes)


def overlap(trace: Path) -> float:
    """The share of the time of all-reduces of gradients in which the backward pass computed."""
    events = json.loads(trace.read_text())["traceEvents"]
    timed = [e for e in events if e.get("ph") == "X"]
    backward = [e for e in timed if e["name"].startswith("autograd::engine::evaluate_function")]
    reduces = [e for e in timed if "all_reduce" in e["name"] and "gloo" in e["name"]]
    busy = covered = 0.0
    for reduce in reduces:
        start, end = reduce["ts"], reduce["ts"] + reduce["dur"]
        busy += end - start
        for node in backward:
            shared = min(end, node["ts"] + node["dur"]) - max(start, node["ts"])
            covered += max(0.0, shared)
    return covered / busy if busy else 0.0


def run(options: argparse.Namespace, processes: int, folder: Path, trace: Path | None) -> float:
    """Tokens/s of a run in processes of its own, each with one thread and, if one, one core."""
    out = folder / f"run-{processes}-{len(os.listdir(folder))}"
    command = [sys.executable]
    if processes == 1:
        core = min(os.sched_getaffinity(0))
        command = ["taskset", "--cpu-list", str(core), *command]
    else:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
    command += [__file__, "--child", "--out", str(out), "--data", str(options.data)]
    command += ["--model", options.model, "--rows", str(options.rows)]
    command += ["--steps", str(options.steps), "--warmup", str(options.warmup)]
    if trace is not None:
        command += ["--trace", str(trace)]
    environment: dict[str, Any] = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return tokens_per_second(out, options.warmup)


def main(arguments: list[str] | None = None) -> float:
    """Print the table; the ratio of two processes to twice one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="gpt2-mini")
    parser.add_argument("--rows", type=int, default=64, help="of 128 tokens in a step")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="text; the bundled English one unless set")
    parser.add_argument("--trace", type=Path, help="where the trace of two processes is written")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        train(options)
        return 0.0
    from trivium.data.samples import sample_path

    options.data = options.data or sample_path("en")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates = {1: [], 2: []}
        for _ in range(options.rounds):
            for processes, measured in rates.items():
                measured.append(run(options, processes, folder, None))
        one, two = (statistics.median(measured) for measured in rates.values())
        trace = options.trace or folder / "trace.json"
        short = argparse.Namespace(**{**vars(options), "steps": 3, "warmup": 2})
        run(short, 2, folder, trace)
        share = overlap(trace)
    print(f"{machine()}\n")
    print(f"| {options.model} | tokens/s | of twice one process |\n|---|---|---|")
    print(f"| one process, one core | {one:,.0f} | |")
    print(f"| two processes, two cores | {two:,.0f} | {two / (2 * one):.2f} |")
    print(f"\n{share:.0%} of the time of gradient all-reduces is inside the backward pass.")
    return two / (2 * one)


if __name__ == "__main__":
    main()
