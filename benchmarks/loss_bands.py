"""How soon healthy runs leave the unigram baseline: the figures behind `train/run_warnings.py`.

The smallest preset of every objective on text is trained on the bundled English text, with its
defaults. The table has the steps after the warm-up at which the training loss came to the unigram
baseline (within 0.25 nats), and fell 0.25 nats below it; and by how much it rose again at most.

    python benchmarks/loss_bands.py --steps 1000
    python benchmarks/loss_bands.py --only causal denoising
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from rich.console import Console

import trivium
from trivium.data.samples import sample_path

MARGIN = 0.25
PRESETS = {
    "masked": ("bert-tiny", "modernbert-tiny"),
    "sentence-pairs": ("bert-tiny",),
    "causal": ("gpt1-tiny", "gpt2-tiny", "llama-tiny", "lstm-tiny"),
    "prefix-lm": ("gpt2-tiny",),
    "seq2seq-prefix-lm": ("t5-tiny",),
    "bidirectional-lm": ("elmo-tiny",),
    "span-corruption": ("t5-tiny",),
    "denoising": ("bart-tiny",),
}


def curve(objective: str, preset: str, steps: int) -> tuple[float, list[tuple[int, float]]]:
    """The unigram loss, and (steps after the warm-up, training loss) of every log line."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            "objective": {"kind": objective},
            "train": {"steps": steps, "eval_every": steps, "save_every": steps, "log_every": 10},
            "schedule": {"warmup": 100, "kind": "constant"},
        }
        run = trivium.pretrain(
            preset,
            data=sample_path("en"),
            out=Path(folder, "run"),
            changes=changes,
            console=Console(file=io.StringIO()),
        )
        losses = [(r["step"] - 100, r["train_loss"]) for r in run.read_metrics() if "lr" in r]
        return run.read_metadata()["unigram_loss"], losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=PRESETS, default=[*PRESETS])
    arguments = parser.parse_args()
    print("| objective | preset | unigram | reached after | 0.25 below after | largest rise |")
    print("|---|---|---|---|---|---|")
    for objective in arguments.only:
        for preset in PRESETS[objective]:
            unigram, losses = curve(objective, preset, arguments.steps)
            cells = []
            for bound in (unigram + MARGIN, unigram - MARGIN):
                passed = next((step for step, loss in losses if loss < bound), None)
                cells.append("-" if passed is None else f"{passed:,}")
            lowest = float("inf")
            rise = 0.0
            for _, loss in losses:
                lowest = min(lowest, loss)
                rise = max(rise, loss - lowest)
            row = (objective, preset, f"{unigram:.2f}", *cells, f"{rise:.2f}")
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
