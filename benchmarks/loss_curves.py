"""Validation loss by steps of each newer objective, from raw text, beside its baseline.

The smallest preset of each is trained on the bundled English text with its defaults. The baseline
is the loss of a unigram model; of contrastive learning that of chance among the 64 texts of a step.
Of replaced-token detection it is that of the generator, whose loss is in the table.

    python benchmarks/loss_curves.py --steps 400
    python benchmarks/loss_curves.py --only permutation --steps 100
"""

from __future__ import annotations

import argparse
import io
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

import trivium
from trivium.data.samples import sample_path

CARRIED = {"kind": "causal", "carry_state": True}
# Name -> preset, and the objective of pretraining or None: the name is a task on examples.
CURVES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "permutation": ("xlnet-tiny", {"kind": "permutation"}),
    "blank-filling": ("glm-tiny", {"kind": "blank-filling"}),
    "replaced-token": ("deberta-v3-tiny", {"kind": "replaced-token"}),
    "causal, carried": ("transformer-xl-tiny", CARRIED),
    "causal, carried (Mamba)": ("mamba-tiny", CARRIED),
    "contrastive": ("bert-tiny", None),
    "tsdae": ("bert-tiny", None),
}


def train(
    name: str, preset: str, objective: dict[str, Any] | None, steps: int, points: int
) -> tuple[list[dict[str, float]], float | None]:
    """The records of all evaluations, and the unigram loss where there is one."""
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "data": sample_path("en"),
            "out": Path(folder, "run"),
            "changes": {"train": {"steps": steps, "eval_every": max(1, steps // points)}},
            "console": Console(file=io.StringIO()),
        }
        if objective is None:
            run = trivium.finetune(name, model=preset, **options)
        else:
            options["changes"]["objective"] = objective
            run = trivium.pretrain(preset, **options)
        records = [record for record in run.read_metrics() if "valid_loss" in record]
        return records, run.read_metadata().get("unigram_loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--points", type=int, default=5, help="evaluations of a run")
    parser.add_argument("--only", nargs="+", choices=CURVES, default=[*CURVES])
    arguments = parser.parse_args()
    print("| objective | preset | baseline | validation loss at steps | CPU seconds |")
    print("|---|---|---|---|---|")
    for name in arguments.only:
        preset, objective = CURVES[name]
        start = time.process_time()
        records, baseline = train(name, preset, objective, arguments.steps, arguments.points)
        seconds = time.process_time() - start
        if name == "contrastive":
            baseline = math.log(64)
        elif baseline is None:
            baseline = train("", "bert-tiny", {"kind": "masked"}, 1, 1)[1]
        term = "valid_generator" if name == "replaced-token" else "valid_loss"
        reached = ", ".join(f"{one[term]:.2f} at {one['step']}" for one in records)
        row = (name, preset, f"{baseline:.2f}", reached, f"{seconds:.0f}")
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
