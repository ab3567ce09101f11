"""The loss of several sizes of a model after equal time, beside the size that `-auto` chooses.

First the speed of every size is measured, then every size trains for the number of steps that fit
into the minutes. Other work on the machine therefore slows the runs down, but does not change their
losses. Decoders train on the bundled stories, encoders on the bundled articles.

    python benchmarks/model_size.py --presets llama-auto modernbert-auto --minutes 2
    python benchmarks/model_size.py --presets llama-auto --minutes 20 --widths 128 192 256
    python benchmarks/model_size.py --presets bert-auto --precision fp32 --measure
    python benchmarks/model_size.py --presets bert-auto --precision fp32 --steps 300 250 200 100 70
    python benchmarks/model_size.py --fit
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy.optimize import curve_fit
from side_by_side import machine

from trivium import pretrain
from trivium.data.samples import easy_text_paths, sample_path
from trivium.models import num_parameters
from trivium.plan import model_size
from trivium.plan.model_size import SizedModel
from trivium.presets import auto_presets, presets
from trivium.train.model_config import ModelConfig

RUNS = (
    (4, 256, 130, 0.859), (4, 128, 518, 0.758), (4, 128, 430, 0.7759), (4, 64, 1100, 0.7837),
    (4, 96, 800, 0.7524), (4, 128, 600, 0.7440), (4, 192, 340, 0.7501), (4, 256, 210, 0.7735),
    (4, 128, 6000, 0.5932), (4, 192, 3400, 0.5768), (4, 256, 2100, 0.5691),
    (4, 256, 1557, 0.609), (5, 192, 11_000, 0.503),
)  # fmt: skip
"""Runs of `llama-mini` on the bundled stories: layers, width, steps, nats per byte.

The last two have a vocabulary of 4,096 tokens instead of 8,192, and the last one has 1,536 tokens
per step and reads the text seven times.
"""


def fit() -> None:
    """Fit the formula of `predict_loss` to the runs, and print its constants and its errors."""
    layers, widths, steps, losses = np.array(RUNS).T
    weights = [
        num_parameters(
            ModelConfig.model_validate(
                {
                    "preset": "llama-mini", "d_model": int(width),
                    "decoder": {"num_layers": int(count)},
                }
            ).build_spec().replace(vocab_size=1)  # type: ignore[union-attr]
        )
        for count, width in zip(layers, widths, strict=True)
    ]  # fmt: skip

    def predict(x: Any, floor: float, n0: float, a: float, s0: float, b: float) -> Any:
        return floor + (n0 / x[0]) ** a + (s0 / x[1]) ** b

    x = np.stack([np.array(weights, dtype=float), steps])
    start = 0.2, 2000.0, 0.25, 10.0, 0.25
    values, _ = curve_fit(predict, x, losses, p0=start, bounds=(0.0, [0.5, 1e6, 1.0, 1e3, 2.0]))
    print("floor, N0, exponent of N, S0, exponent of S:", np.round(values, 4).tolist())
    for run, predicted in zip(RUNS, predict(x, *values), strict=True):
        print(run, f"predicted {predicted:.4f}")


def measure_sizes(
    preset: str, minutes: float, widths: list[int], precision: str
) -> list[SizedModel]:
    """The speed and the predicted loss of every width."""
    tree = {"model": {"preset": preset}, "train": {"minutes": minutes, "precision": precision}}
    return [
        model_size._measure_size(tree, preset, layers, width)
        for layers, width in model_size._SIZES
        if width in widths
    ]


def train(
    preset: str, size: SizedModel, steps: int, precision: str, out: Path
) -> tuple[float, float]:
    """Train a size. Returns the validation loss in nats per token and in nats per byte."""
    decoder = presets[auto_presets[preset]].family == "decoder-only"
    text, validation = easy_text_paths("en") if decoder else (sample_path("en"), 0.03)
    changes = {
        **size.values,
        "train.steps": steps,
        "train.precision": precision,
        "train.eval_tokens": 76_000,
        "train.eval_every": steps,
    }
    run = pretrain(
        changes.pop("model.preset"),
        data=text,
        validation=validation,
        out=out,
        changes=changes,
        console=Console(quiet=True),
    )
    loss = [row["valid_loss"] for row in run.read_metrics() if "valid_loss" in row][-1]
    return loss, loss / run.read_metadata()["bytes_per_token"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", choices=auto_presets, default=["llama-auto"])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 96, 128, 192, 256])
    parser.add_argument(
        "--steps", nargs="+", type=int, help="of each width, in place of those that fit"
    )
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--measure", action="store_true", help="measure the speeds alone")
    parser.add_argument("--fit", action="store_true", help="fit the formula to earlier runs")
    options = parser.parse_args()
    if options.fit:
        fit()
        return
    print(
        f"{machine()}\n\n| preset | layers x width | steps | nats/token | nats/byte | predicted |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for preset in options.presets:
            sizes = measure_sizes(preset, options.minutes, options.widths, options.precision)
            steps = options.steps or [round(size.steps) for size in sizes]
            if options.measure:
                print(f"| {preset}: steps of {[size.d_model for size in sizes]}: {steps} |")
                continue
            for size, count in zip(sizes, steps, strict=True):
                name = f"{size.num_layers} x {size.d_model}"
                out = Path(folder) / f"{preset}-{size.d_model}"
                token, byte = train(preset, size, max(1, count), options.precision, out)
                loss = model_size.predict_loss(size.num_weights, count)
                print(f"| {preset} | {name} | {count} | {token:.3f} | {byte:.4f} | {loss:.3f} |")


if __name__ == "__main__":
    main()
