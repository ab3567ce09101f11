"""Tokens per second that a run forecasts before its first step, against what it then reaches.

python benchmarks/forecast.py
python benchmarks/forecast.py --presets gpt2 --steps 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import trivium
from trivium.data.samples import sample_path
from trivium.plan import forecast

PRESETS = ("bert-mini", "gpt2-midi", "llama-mini")


def measure(preset: str, steps: int) -> tuple[float, float]:
    """The forecast, and the median of all steps after the first two."""
    train = {"steps": steps, "log_every": 1, "eval_every": 10**6, "save_every": 10**6}
    changes = {"train": {**train, "eval_tokens": 1024}}
    with tempfile.TemporaryDirectory() as folder:
        run = trivium.pretrain(
            preset, data=sample_path("en"), out=Path(folder, "run"), changes=changes
        )
        rates = [record["tokens_per_second"] for record in run.read_metrics()[2:-1]]
        return run.read_metadata()["forecast"]["tokens_per_second"], statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    forecast._MIN_RUN_SECONDS = 0.0  # every run begins with one
    rows = [(preset, *measure(preset, options.steps)) for preset in options.presets]
    print("| preset | forecast, tokens/s | reached, tokens/s | forecast / reached |")
    print("|---|---|---|---|")
    for preset, expected, reached in rows:
        print(f"| {preset} | {expected:,.0f} | {reached:,.0f} | {expected / reached:.2f} |")


if __name__ == "__main__":
    main()
