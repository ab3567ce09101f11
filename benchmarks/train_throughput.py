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
from typing import Any

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

    shards = Shards.open(job.shards)
    vocab_size = shards.manifest.vocab_size
    rows = Rows(shards.split("train"), LENGTH)
    ids = torch.from_numpy(rows.take(range(min(len(rows), 2048))).input_ids)
    labels = ids.clone()
    if job.model == "bert":
        labels[torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)) > 0.15] = -100
    examples = [{"input_ids": i, "labels": t} for i, t in zip(ids, labels, strict=True)]
    clock, times = step_clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(
            folder,
            per_device_train_batch_size=job.rows,
            max_steps=job.warmup + job.steps,
            bf16=True,
        )
        transformers.Trainer(
            network(job.model, vocab_size), arguments, train_dataset=examples, callbacks=[clock]
        ).train()
    return {"tokens/s": job.steps * job.rows * LENGTH / (times[-1] - times[job.warmup - 1])}


def network(model: str, vocab_size: int) -> Any:
    """The peer's model of the same shape."""
    import transformers

    shape = {
        "vocab_size": vocab_size,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    match model:
        case "bert":
            config = transformers.BertConfig(
                **shape,
                intermediate_size=1024,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
            return transformers.BertForMaskedLM(config)
        case "gpt2":
            config = transformers.GPT2Config(
                vocab_size=vocab_size,
                n_embd=256,
                n_layer=4,
                n_head=4,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=0,
                eos_token_id=0,
            )
            return transformers.GPT2LMHeadModel(config)
        case "llama":
            config = transformers.LlamaConfig(**shape, num_key_value_heads=2, intermediate_size=688)
            return transformers.LlamaForCausalLM(config)
        case _:
            raise ValueError(model)


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

    with tempfile.TemporaryDirectory() as folder:
        shards = prepare_shards(sample("en"), Path(folder), vocab_size=chosen.vocab_size)
        shared = {"shards": str(shards), "rows": chosen.rows}
        shared |= {"steps": chosen.steps, "warmup": chosen.warmup}
        compare(chosen, SIDES, {model: {"model": model, **shared} for model in chosen.models})


if __name__ == "__main__":
    main()
