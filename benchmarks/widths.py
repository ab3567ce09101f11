"""The best learning rates of a small decoder at several widths: Muon's, and of token embeddings.

`llama-mini` is trained for some steps at every width, its heads and feed-forward networks growing
with it. First Muon's rate varies, then AdamW's of token embeddings; the other is the default.

    python benchmarks/widths.py --data wiki.txt --validation wiki.valid.txt
    python benchmarks/widths.py --widths 1024 2048 --steps 600 --figures longer.json
    python benchmarks/widths.py plot                # docs/pictures/widths.svg

Losses are kept in a file, those of a width and a rate until they are measured again; runs that are
not comparable, of another text or another number of steps, need another one (--figures). Without
--data the bundled English text is used. `plot` draws what the file has.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from pathlib import Path

from rich.console import Console

import trivium
from trivium.data.samples import sample_path
from trivium.files import write_json

RATES = {
    "optimizer.matrix_lr": ("Muon's matrices", (0.005, 0.01, 0.02)),
    "optimizer.embedding_lr": ("token embeddings, AdamW", (0.016, 0.032, 0.064)),
}
"""Keys of a recipe, what they are rates of, and those that are tried, the default in the middle."""
HERE = Path(__file__).parent
FIGURES, PICTURE = HERE / "widths.json", HERE.parent / "docs" / "pictures" / "widths.svg"

Losses = dict[str, dict[str, dict[str, float]]]
"""By key, width and rate."""


def loss(job: argparse.Namespace, width: int, key: str, rate: float) -> float:
    """Nats per token of held-out text at the end of a run."""
    changes = {f"model.{name}": size for name, size in sizes(width).items()}
    changes |= {
        key: rate,
        "tokenizer.vocab_size": job.vocab_size,
        "data.length": 128,
        "train.batch_tokens": 2048,
        "train.steps": job.steps,
        "train.eval_every": job.steps,
        "train.eval_tokens": 1_000_000,
    }
    if job.validation:
        changes["data.validation"] = [job.validation]
    with tempfile.TemporaryDirectory() as folder:
        run = trivium.pretrain(
            "llama-mini",
            data=job.data or sample_path("en"),
            out=Path(folder, "run"),
            changes=[f"{key}={value}" for key, value in changes.items()],
            console=Console(file=io.StringIO()),
        )
        return run.read_metrics()[-1]["valid_loss"]


def sizes(width: int) -> dict[str, int]:
    """Keys of a decoder that is `llama-mini` at width 256."""
    return {
        "d_model": width,
        "decoder.layers.mixer.num_heads": width // 64,
        "decoder.layers.mixer.num_kv_heads": width // 128,
        "decoder.layers.feed_forward.d_ff": width * 43 // 16,
    }


def measure(job: argparse.Namespace) -> None:
    """Put the losses of all widths and rates into the file, and print them as they come."""
    losses: Losses = json.loads(job.figures.read_text()) if job.figures.is_file() else {}
    for width in job.widths:
        for key, (_, rates) in RATES.items():
            by_rate = losses.setdefault(key, {}).setdefault(str(width), {})
            for rate in rates:
                by_rate[str(rate)] = loss(job, width, key, rate)
                print(f"width {width}, {key} {rate}: {by_rate[str(rate)]:.3f}", flush=True)
                write_json(job.figures, losses)


def plot(losses: Losses) -> None:
    """Loss over each rate, a line for every width, the default marked."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "widths"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
    for axis, (key, (title, (_, default, _))) in zip(axes, RATES.items(), strict=True):
        for width, by_rate in losses[key].items():
            points = sorted((float(rate), nats) for rate, nats in by_rate.items())
            axis.semilogx(*zip(*points), marker="o", ms=4, lw=1, label=f"width {width}")
        rates = sorted({float(rate) for by_rate in losses[key].values() for rate in by_rate})
        axis.set(title=title, xlabel="peak learning rate", xticks=rates, xticklabels=rates)
        axis.minorticks_off()
        axis.axvline(default, color="gray", ls=":", lw=1)
    axes[0].set(ylabel="validation loss, nats")
    axes[0].legend()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("what", nargs="?", choices=("measure", "plot"), default="measure")
    options.add_argument("--data", help="training text; default: the bundled English text")
    options.add_argument("--validation", help="held-out text; default: a part of the training text")
    options.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512])
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--vocab-size", type=int, default=8192)
    options.add_argument("--figures", type=Path, default=FIGURES, help="JSON file of the losses")
    job = options.parse_args()
    if job.what == "plot":
        return plot(json.loads(job.figures.read_text()))
    measure(job)


if __name__ == "__main__":
    main()
