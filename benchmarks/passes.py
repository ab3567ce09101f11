"""Held-out loss of a small decoder after passes over the same text: Trivium, and `transformers`.

Both read the same rows of 128 tokens, 16 a step, in bf16, and are evaluated on all held-out text
after every pass. Ours is `llama-mini` with nothing set. The peer is LLaMA of the same sizes with
AdamW, whose rate rises for 50 steps and falls to 0 at the end, with a rate and a weight decay for
its matrices that were the best of those tried (RESULTS.md).

    python benchmarks/passes.py --data wiki.txt --validation wiki.valid.txt --passes 4
    python benchmarks/passes.py --sides transformers --passes 6 --rate 1e-3 --weight-decay 0.1

Without --data the bundled English text is used, of which every tenth document is held out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from side_by_side import Figures, compare, is_child, parser
from time_to_loss import FAMILIES, LENGTH, Steps, held_out, mean_loss, peer_inputs, split_sample
from torch.nn.functional import cross_entropy

import trivium
from trivium.data import Batch, Rows, Shards
from trivium.data.prepare import prepare
from trivium.data.shards import TRAIN
from trivium.data.splitting import CorpusOptions, read_training_texts
from trivium.text import Tokenizer
from trivium.train.loader import BatchStream

DECODER = FAMILIES["decoder"]


def run_trivium(job: argparse.Namespace) -> Figures:
    """One `trivium.pretrain`."""
    steps = steps_per_pass(Shards.open(job.shards))
    changes = [
        f"train.steps={job.passes * steps}",
        f"train.eval_every={steps}",
        "train.eval_tokens=1000000000",
        f"train.batch_tokens={DECODER.rows * LENGTH}",
        "train.precision=bf16",
        f"data.length={LENGTH}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = trivium.pretrain(
            DECODER.preset, data=job.shards, out=Path(folder, "run"), changes=changes
        )
        records = run.read_metrics()
    return of_passes([record["valid_loss"] for record in records if "valid_loss" in record])


def run_transformers(job: argparse.Namespace) -> Figures:
    """LLaMA in a loop of its own, so that it can be evaluated after every pass."""
    torch.manual_seed(0)
    shards, tokenizer = Shards.open(job.shards), Tokenizer.load(job.shards)
    model = DECODER.peer(tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(groups(model, job.weight_decay), job.rate, (0.9, 0.95))
    steps = steps_per_pass(shards)
    total, losses = job.passes * steps, []
    factor = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((total - step) / total, (step + 1) / 50)
    )
    rows = Rows(shards.split(TRAIN), LENGTH)
    stream = BatchStream(
        "", DECODER.objective, rows, tokenizer.vocabulary, rows_per_step=DECODER.rows
    )
    batches = held_out(DECODER, shards, tokenizer)
    for step, inputs in zip(range(1, total + 1), Steps(stream, 1), strict=False):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        factor.step()
        if step % steps == 0:
            losses.append(peer_loss(model, batches))
    return of_passes(losses)


def groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def peer_loss(model: Any, batches: tuple[Batch, ...]) -> float:
    """Nats per token of held-out text."""

    def nats(batch: Batch) -> float:
        inputs = peer_inputs(batch)
        labels = inputs.pop("labels")
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(**inputs).logits.flatten(0, 1).float()
        return cross_entropy(logits, labels.flatten(), reduction="sum").item()

    model.eval()
    loss = mean_loss(nats, batches)
    model.train()
    return loss


def steps_per_pass(shards: Shards) -> int:
    """Full steps."""
    return len(Rows(shards.split(TRAIN), LENGTH)) // DECODER.rows


def of_passes(losses: list[float]) -> Figures:
    """The lowest first."""
    return {"lowest": min(losses)} | {f"pass {n}": loss for n, loss in enumerate(losses, start=1)}


SIDES = {"trivium": run_trivium, "transformers": run_transformers}


def main() -> None:
    options = parser(__doc__, rounds=1)
    options.add_argument("--data", help="training text, .txt; default: the bundled sample")
    options.add_argument("--validation", help="held-out text; needed with --data")
    options.add_argument("--passes", type=int, default=4)
    options.add_argument("--vocab-size", type=int, default=8192)
    options.add_argument("--rate", type=float, default=2e-3, help="of the peer")
    options.add_argument("--weight-decay", type=float, default=1.0, help="of the peer")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    if (chosen.data is None) != (chosen.validation is None):
        options.error("--data and --validation go together")
    with tempfile.TemporaryDirectory() as folder:
        if chosen.data is None:
            chosen.data, chosen.validation = split_sample(Path(folder))
        corpus = CorpusOptions(validation=[chosen.validation])
        texts = read_training_texts([chosen.data], corpus)
        keys = DECODER.objective.tokenizer_defaults(trivium.presets[DECODER.preset])
        keys |= {"kind": DECODER.tokenizer, "vocab_size": chosen.vocab_size, "progress": False}
        tokenizer = Tokenizer.train(texts=texts, **keys)
        shards = Path(folder, "shards")
        prepare([chosen.data], tokenizer, shards, options=corpus)
        job = {"shards": str(shards), "passes": chosen.passes}
        job |= {"rate": chosen.rate, "weight_decay": chosen.weight_decay}
        compare(chosen, SIDES, {f"{chosen.passes} passes": job})


if __name__ == "__main__":
    main()
