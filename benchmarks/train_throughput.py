"""Training tokens per second: Trivium against `transformers`' Trainer on the same rows.

Both train the same shape (4 layers x 256, vocabulary 8192) on the bundled English text, packed into
rows of 128 tokens, 32 rows per step, in bfloat16 without dropout.

    python benchmarks/train_throughput.py --rounds 3 --steps 30
    python benchmarks/train_throughput.py --models gpt2 --sides trivium
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from side_by_side import (
    Figures,
    compare,
    is_child,
    parser,
    step_clock,
    tokens_per_second,
    training_arguments,
)

MODELS = {"bert": "bert-mini", "gpt2": "gpt2-mini", "llama": "llama-mini"}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LENGTH, ROWS, VOCABULARY = 128, 32, 8192


def prepare_shards(text: Path, folder: Path, *, vocab_size: int) -> Path:
    """Text as token shards that every model can be trained on."""
    from trivium.data.prepare import prepare
    from trivium.data.splitting import training_texts
    from trivium.text import Tokenizer

    tokenizer = Tokenizer.train(
        "wordpiece",
        texts=training_texts(text),
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        progress=False,
    )
    return prepare(text, tokenizer, folder / "shards").folder


def export(model: str, folder: Path, *, vocab_size: int) -> str:
    """New weights of the preset without dropout, as a Hugging Face folder for the peer."""
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets

    spec = presets[MODELS[model]].replace(vocab_size=vocab_size).with_dropout(0.0)
    LanguageModel(spec, build(spec, seed=0)).save_hf(folder / model)
    return str(folder / model)


def run_trivium(job: argparse.Namespace) -> Figures:
    """`trivium.pretrain` on the shards."""
    import trivium

    with tempfile.TemporaryDirectory() as folder:
        changes = [
            f"train.steps={job.warmup + job.steps}",
            f"train.batch_tokens={job.rows * LENGTH}",
            f"data.length={LENGTH}",
            "optimizer.kind=adamw",
            "train.log_every=1",
            "train.eval_every=1000000",
            "train.save_every=1000000",
        ]
        run = Path(folder, "run")
        trivium.pretrain(MODELS[job.model], data=job.shards, out=run, changes=changes)
        return {"tokens/s": tokens_per_second(run, job.warmup)}


def run_transformers(job: argparse.Namespace) -> Figures:
    """`transformers.Trainer` on the same rows."""
    import torch
    import transformers

    from trivium.data import Rows, Shards

    rows = Rows(Shards.open(job.shards).split("train"), LENGTH)
    ids = torch.from_numpy(rows.take(range(min(len(rows), 2048))).input_ids)
    labels = ids.clone()
    masked = job.model == "bert"
    if masked:
        labels[torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)) > 0.15] = -100
    examples = [{"input_ids": i, "labels": t} for i, t in zip(ids, labels, strict=True)]
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    network = kind.from_pretrained(job.folder)
    clock, times = step_clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(
            folder,
            per_device_train_batch_size=job.rows,
            max_steps=job.warmup + job.steps,
            bf16=True,
        )
        transformers.Trainer(network, arguments, train_dataset=examples, callbacks=[clock]).train()
    return {"tokens/s": job.steps * job.rows * LENGTH / (times[-1] - times[job.warmup - 1])}


SIDES = {"trivium": run_trivium, "transformers": run_transformers}


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--steps", type=int, default=30, help="timed steps of each run")
    options.add_argument("--warmup", type=int, default=5, help="steps before the clock starts")
    options.add_argument("--rows", type=int, default=ROWS, help="rows per step")
    options.add_argument("--vocab-size", type=int, default=VOCABULARY)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    from trivium.data.samples import sample

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shards = prepare_shards(sample("en"), folder, vocab_size=chosen.vocab_size)
        shared = {name: getattr(chosen, name) for name in ("rows", "steps", "warmup")}
        jobs = {}
        for model in chosen.models:
            weights = export(model, folder, vocab_size=chosen.vocab_size)
            jobs[model] = {"model": model, "shards": str(shards), "folder": weights, **shared}
        compare(chosen, SIDES, jobs)


if __name__ == "__main__":
    main()
