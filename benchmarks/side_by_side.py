"""Shared by the benchmarks: Trivium and its peer on the same work, in turn, and their ratio.

A benchmark is a table of sides, each a function from a job to its figures. Every side runs in a
process of its own, one after the other and again for every round, so that other load on the machine
meets all of them. The table shows medians, and the ratio of the first figure to the peer's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Figures = dict[str, float]
Side = Callable[[argparse.Namespace], Figures]
Job = dict[str, Any]

PEER = "transformers"
"""Sides whose names begin so are the peer; ratios are to the best of them."""


def parser(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=rounds, help="runs of every side")
    options.add_argument("--sides", nargs="+", help="only these")
    options.add_argument("--side", help=argparse.SUPPRESS)
    options.add_argument("--job", help=argparse.SUPPRESS)
    return options


def timed_parser(
    doc: str | None, *, minutes: float, shares: list[float]
) -> argparse.ArgumentParser:
    """The options of a benchmark whose peer trains for some minutes, and Trivium for shares."""
    options = parser(doc, rounds=1)
    options.add_argument("--minutes", type=float, default=minutes, help="of the peer")
    options.add_argument("--shares", type=float, nargs="+", default=shares, help="ours")
    options.add_argument("--vocab-size", type=int, default=8192)
    options.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE")
    options.add_argument("--rate", type=float, help="another learning rate of the peer")
    options.add_argument("--rows", type=int, help="others in a step of the peer")
    return options


def is_child(options: argparse.Namespace, sides: Mapping[str, Side]) -> bool:
    """In the process of one side: run it, print its figures, and return True."""
    if options.side is None:
        return False
    figures = sides[options.side](argparse.Namespace(**json.loads(options.job)))
    print(f"\n{json.dumps(figures)}", flush=True)
    return True


def compare(
    options: argparse.Namespace, sides: Iterable[str], jobs: Mapping[str, Job]
) -> dict[str, dict[str, list[Figures]]]:
    """Run every side on every job and print a table; the figures by job, side and round."""
    chosen = [side for side in sides if options.sides is None or side in options.sides]
    results: dict[str, dict[str, list[Figures]]] = {}
    for name, job in jobs.items():
        results[name] = {side: [] for side in chosen}
        for _ in range(options.rounds):
            for side, figures in results[name].items():
                figures.append(run_side(side, job))
        print("\n".join(table(name, results[name])), flush=True)
    return results


def run_side(side: str, job: Job) -> Figures:
    """The figures of one side, from a process of its own; none where it failed."""
    command = [sys.executable, sys.argv[0], "--side", side, "--job", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{side} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def timed_runs(options: argparse.Namespace, job: Job) -> Iterator[tuple[str, Figures, Figures]]:
    """The side, its figures and the peer's, of each run as it ends; options of `timed_parser`."""
    peer: Figures = {}
    prepared = 0.0
    for side, share in [(PEER, 1.0), *(("trivium", share) for share in sorted(options.shares))]:
        if options.sides is not None and side not in options.sides:
            continue
        minutes = share * options.minutes
        if side != PEER:  # its budget begins after the preparation
            minutes -= prepared / 60
        if figures := run_side(side, job | {"minutes": minutes, "started": time.monotonic()}):
            prepared = figures["prepared"]
            peer = figures if side == PEER else peer
            yield side, figures, peer


def shortest_minutes(options: argparse.Namespace) -> float:
    """Of the runs of Trivium; options of `timed_parser`."""
    return min(options.shares) * options.minutes


def time_share(
    figures: Figures, peer: Figures, *, as_good: Callable[[Figures, Figures], bool]
) -> str:
    """The share of the peer's seconds that a side took; empty where it is the peer, or alone."""
    if figures is peer or not peer:
        return ""
    share = f"{figures['seconds'] / peer['seconds']:.2f}"
    return f"{share}, as good" if as_good(figures, peer) else share


def table(name: str, results: Mapping[str, list[Figures]]) -> list[str]:
    """Markdown rows: medians of every side, and its ratio to the peer with the range."""
    columns = list(dict.fromkeys(key for rows in results.values() for row in rows for key in row))
    lines = ["", f"| {name} | {' | '.join(columns)} | ratio |", "|---" * (len(columns) + 2) + "|"]
    peer = _best_peer(results, columns)
    for side, rows in results.items():
        cells = [_median(rows, column) for column in columns]
        ratio = "" if peer is None or side == peer else _ratio(rows, results[peer], columns[0])
        lines.append(f"| {side} | {' | '.join(cells)} | {ratio} |")
    return lines


def _best_peer(results: Mapping[str, list[Figures]], columns: list[str]) -> str | None:
    peers = {
        side: statistics.median(row[columns[0]] for row in rows if row)
        for side, rows in results.items()
        if side.startswith(PEER) and any(rows)
    }
    if not peers:
        return None
    best = min if columns[0].startswith("seconds") else max
    return best(peers, key=lambda side: peers[side])


def _median(rows: list[Figures], column: str) -> str:
    values = [row[column] for row in rows if column in row]
    return f"{statistics.median(values):,.4g}" if values else "failed" if not any(rows) else ""


def _ratio(rows: list[Figures], peers: list[Figures], column: str) -> str:
    pairs = [(row, peer) for row, peer in zip(rows, peers, strict=True) if row and peer]
    ratios = [row[column] / peer[column] for row, peer in pairs]
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def machine() -> str:
    """Processor, accelerator and versions in one line."""
    import torch
    import transformers

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = re.findall(r"model name\s*: (.+)", info.read_text())
        cpu = names[0] if names else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    return (
        f"{cpu}, {os.cpu_count()} cores{gpu}, {versions}, transformers {transformers.__version__}"
    )


def training_arguments(folder: str, **options: Any) -> Any:
    """`transformers.TrainingArguments` without logging, saving and reports."""
    import torch
    import transformers

    kind = options.pop("kind", transformers.TrainingArguments)
    return kind(
        folder,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **options,
    )


def step_clock() -> tuple[Any, list[float]]:
    """A callback of `transformers.Trainer`, and the times at which steps ended."""
    import transformers

    times: list[float] = []

    class StepClock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    return StepClock(), times


def read_metrics(run: Path) -> list[dict[str, float]]:
    """The records of a run's `metrics.jsonl`."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def tokens_per_second(run: Path, warmup: int) -> float:
    """Real tokens per second of a run that logged every step, without its first steps."""
    logged = [record for record in read_metrics(run) if "train_loss" in record]
    first, last = logged[warmup - 1], logged[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])
