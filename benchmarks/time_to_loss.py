"""Seconds from raw text to a validation loss: Trivium against a textbook's `transformers` recipe.

Both sides get the same text files and nothing else: each trains its WordPiece vocabulary, encodes
the text, and trains 4 layers x 256 on rows of 128 tokens with 20 % masked; the clock starts with
the process. "textbook" is BERT as published, learning rate 5e-5, batches of 10 rows accumulated 8
times, float32; "tuned" is what a careful user would find: ModernBERT in bfloat16, learning rate
2e-3 with warm-up, batches of 16 rows.

    python benchmarks/time_to_loss.py --data wiki.txt --validation wiki.valid.txt --minutes 4

Without --data the bundled English text is used, of which every tenth document is held out.

With --pairs every preset is trained twice at the same time, on one thread each: without an option,
and with the settings of `BEST`. Losses are those of the text with a budget in seconds; of masked
tokens at 15 %, whatever the run masks.

    python benchmarks/time_to_loss.py --pairs modernbert-mini llama-mini t5-mini --minutes 4 \
        --precision bf16 --data wiki.txt --validation wiki.valid.txt
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from side_by_side import Figures, is_child, parser, read_metrics, run_side, training_arguments

STARTED = time.monotonic()
LENGTH, MASKED, EVALUATED_ROWS = 128, 0.2, 256
# The best settings known, by the runs in LOG.md.
BEST = {
    "modernbert-mini": ["model.initialization=fast", "objective.probability=0.3"],
    "llama-mini": ["optimizer.kind=muon"],
    "t5-mini": ["model.initialization=fast", "optimizer.kind=muon"],
}


def run_trivium(job: argparse.Namespace) -> Figures:
    """Validation losses by seconds of one `trivium.pretrain`."""
    import trivium

    with tempfile.TemporaryDirectory() as folder:
        changes = [
            f"train.minutes={job.minutes}",
            "defaults=fast",
            f"tokenizer.vocab_size={job.vocab_size}",
            f"objective.probability={MASKED}",
            f"train.eval_tokens={EVALUATED_ROWS * LENGTH}",
            f"train.eval_every={job.eval_every}",
            f"data.validation=['{job.validation}']",
        ]
        imports = time.monotonic() - STARTED
        trivium.pretrain(job.preset, data=job.data, out=Path(folder, "run"), changes=changes)
        records = read_metrics(Path(folder, "run"))
    points = [(r["seconds"] + imports, r["valid_loss"]) for r in records if "valid_loss" in r]
    return _figures(points)


def run_preset(job: argparse.Namespace) -> Figures:
    """The loss of one `trivium.pretrain` with `settings` at its end, and its steps."""
    import trivium

    with tempfile.TemporaryDirectory() as folder:
        changes = [
            f"train.minutes={job.minutes}",
            f"train.precision={job.precision}",
            f"tokenizer.vocab_size={job.vocab_size}",
            f"data.length={LENGTH}",
            f"data.validation=['{job.validation}']",
            f"train.eval_tokens={EVALUATED_ROWS * LENGTH}",
            "train.eval_every=1000000",
            *job.settings,
        ]
        run = trivium.pretrain(job.preset, data=job.data, out=Path(folder, "run"), changes=changes)
        last = read_metrics(run.path)[-1]
        loss = last["valid_loss"]
        if "masked" in run.read_facts()["objectives"]:
            loss = masked_loss(run.path)
    return {"loss": loss, "steps": last["step"], "seconds": last["seconds"]}


def masked_loss(folder: Path, share: float = 0.15) -> float:
    """The loss of a run on its held-out rows with so many of the tokens masked."""
    import torch

    import trivium
    from trivium.data import Rows, Shards
    from trivium.data.shards import VALIDATION
    from trivium.objectives.base import to_device
    from trivium.objectives.masked import Masked
    from trivium.train.loader import BatchStream

    lm = trivium.load(folder)
    assert lm.tokenizer is not None
    rows = Rows(Shards.open(folder / "shards").split(VALIDATION), LENGTH)
    stream = BatchStream("", Masked(probability=share), rows, lm.tokenizer.vocabulary)
    batch, cpu = stream.held_out(EVALUATED_ROWS * LENGTH), torch.device("cpu")
    total = 0.0
    with torch.inference_mode():
        for micro_batch in batch.micro_batches:
            losses = stream.objective.loss(lm.module, to_device(micro_batch, cpu))
            total += sum(loss.item() for loss in losses.values())
    return total / sum(batch.label_counts.values())


def run_transformers(job: argparse.Namespace) -> Figures:
    """Validation losses by seconds of `transformers.Trainer`."""
    import tokenizers
    import torch
    import transformers

    documents, heldout = (
        Path(path).read_text(encoding="utf-8").split("\n\n") for path in (job.data, job.validation)
    )
    trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(documents, vocab_size=job.vocab_size, show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )

    def rows(texts: list[str]) -> list[dict[str, Any]]:
        """Texts with their special tokens, joined and cut, as the textbook does it."""
        encoded = tokenizer(texts, return_special_tokens_mask=True)
        names = ("input_ids", "special_tokens_mask")
        joined = {name: list(itertools.chain(*encoded[name])) for name in names}
        starts = range(0, len(joined["input_ids"]) - LENGTH + 1, LENGTH)
        return [{name: joined[name][i : i + LENGTH] for name in names} for i in starts]

    points: list[tuple[float, float]] = []

    class Clock(transformers.TrainerCallback):
        def on_evaluate(self, arguments: Any, state: Any, control: Any, metrics: Any, **_) -> None:
            seconds = time.monotonic() - STARTED
            points.append((seconds, metrics["eval_loss"]))
            control.should_training_stop = seconds > 60 * job.minutes

    torch.manual_seed(0)
    model, training = _textbook(job) if job.recipe == "textbook" else _tuned(job)
    with tempfile.TemporaryDirectory() as folder:
        transformers.Trainer(
            model,
            training_arguments(
                folder, per_device_eval_batch_size=64, eval_strategy="steps", **training
            ),
            data_collator=transformers.DataCollatorForLanguageModeling(
                tokenizer, mlm_probability=MASKED
            ),
            train_dataset=rows(documents),
            eval_dataset=rows(heldout)[:EVALUATED_ROWS],
            callbacks=[Clock()],
        ).train()
    return _figures(points)


def _textbook(job: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.BertConfig(**_shape(job), intermediate_size=1024)
    return transformers.BertForMaskedLM(config), {
        "learning_rate": 5e-5,
        "per_device_train_batch_size": 10,
        "gradient_accumulation_steps": 8,
        "num_train_epochs": 10,
        "eval_steps": max(1, job.eval_every // 4),
    }


def _tuned(job: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.ModernBertConfig(
        **_shape(job),
        intermediate_size=688,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
        sparse_prediction=True,
    )
    return transformers.ModernBertForMaskedLM(config), {
        "learning_rate": 2e-3,
        "per_device_train_batch_size": 16,
        "warmup_steps": 100,
        "max_steps": 1000,
        "eval_steps": job.eval_every,
        "bf16": True,
    }


def _shape(job: argparse.Namespace) -> dict[str, int]:
    return {
        "vocab_size": job.vocab_size,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }


def _figures(points: list[tuple[float, float]]) -> Figures:
    """Points as figures: a loss by the seconds at which it was measured."""
    return {f"{seconds:.1f}": loss for seconds, loss in points}


def split_sample(folder: Path) -> tuple[str, str]:
    """The bundled English text as two files, every tenth document held out."""
    from trivium.data import read_documents
    from trivium.data.samples import sample

    documents = [document.text for document in read_documents(sample("en"))]
    train = [text for number, text in enumerate(documents) if number % 10]
    paths = folder / "train.txt", folder / "valid.txt"
    for path, texts in zip(paths, (train, documents[::10]), strict=True):
        path.write_text("\n\n".join(texts), encoding="utf-8")
    return str(paths[0]), str(paths[1])


SIDES = {"trivium": run_trivium, "transformers": run_transformers, "preset": run_preset}


def run_pairs(chosen: argparse.Namespace) -> None:
    """Print the losses of every preset without an option and with the best settings, and the ratio.

    The two of a pair run at the same time, with one thread each.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    names = ("data", "validation", "minutes", "vocab_size", "precision")
    shared = {name: getattr(chosen, name) for name in names}
    print(
        "| preset | without an option | steps | best settings | steps | ratio |\n"
        "|---|---|---|---|---|---|"
    )
    for preset in chosen.pairs:
        jobs = [{**shared, "preset": preset, "settings": one} for one in ([], BEST[preset])]
        with ThreadPoolExecutor(2) as pool:
            ours, best = pool.map(run_side, ["preset", "preset"], jobs)
        if ours and best:
            cells = [f"{one[key]:.4g}" for one in (ours, best) for key in ("loss", "steps")]
            print(
                f"| {preset} | {' | '.join(cells)} | {ours['loss'] / best['loss']:.3f} |",
                flush=True,
            )


def main() -> None:
    options = parser(__doc__, rounds=1)
    options.add_argument("--data", help="training text, .txt; default: the bundled sample")
    options.add_argument("--validation", help="held-out text; needed with --data")
    options.add_argument("--minutes", type=float, default=4.0, help="of training, each side")
    options.add_argument("--vocab-size", type=int, default=8192)
    options.add_argument("--eval-every", type=int, default=250, help="steps")
    options.add_argument("--presets", nargs="+", default=["modernbert-mini", "bert-mini"])
    options.add_argument("--pairs", nargs="+", choices=BEST, help="presets; see above")
    options.add_argument("--precision", default="auto", help="of --pairs: auto, bf16, fp32")
    options.add_argument("--recipes", nargs="*", default=["textbook"], help="textbook, tuned")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    if (chosen.data is None) != (chosen.validation is None):
        options.error("--data and --validation go together")
    with tempfile.TemporaryDirectory() as folder:
        if chosen.data is None:
            chosen.data, chosen.validation = split_sample(Path(folder))
        if chosen.pairs:
            run_pairs(chosen)
            return
        names = ("data", "validation", "minutes", "vocab_size", "eval_every")
        shared = {name: getattr(chosen, name) for name in names}
        jobs = [("trivium", "preset", preset) for preset in chosen.presets]
        jobs += [("transformers", "recipe", recipe) for recipe in chosen.recipes]
        curves = {}
        for side, key, value in jobs:
            figures = run_side(side, {**shared, key: value})
            curves[side, value] = [(float(seconds), loss) for seconds, loss in figures.items()]
            points = [f"{loss:.2f} at {seconds:.0f} s" for seconds, loss in curves[side, value]]
            print(f"{side} {value}: {', '.join(points) or 'failed'}", flush=True)
    report(curves)


def report(curves: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    """Print when every model of ours reaches the best loss of every peer."""
    ours = {name: points for (side, name), points in curves.items() if side == "trivium"}
    peers = {name: points for (side, name), points in curves.items() if side != "trivium"}
    for peer, peer_points in peers.items():
        for name, points in ours.items():
            if not peer_points:
                continue
            seconds, loss = min(peer_points, key=lambda point: point[1])
            reached = next((s for s, valid_loss in points if valid_loss <= loss), None)
            if reached is None:
                print(f"{name} did not reach {loss:.2f} of transformers {peer}")
            else:
                print(
                    f"{name} reaches {loss:.2f} at {reached:.0f} s, transformers {peer} at "
                    f"{seconds:.0f} s: ratio {reached / seconds:.3f}"
                )


if __name__ == "__main__":
    main()
