"""Training tokens per second: Trivium against `transformers`' Trainer on the same rows.

Three small models (4 layers x 256, vocabulary 8192) on the bundled English text, packed into rows
of 128 tokens, 32 rows per step, in one precision without dropout. With `--full-size`, on a GPU,
four models of published sizes; then the table has the utilization too (the model's FLOPs by the
GPU's peak), the peak of memory, and what `trivium plan` counts for it.

    python benchmarks/train_throughput.py --rounds 3 --steps 30
    python benchmarks/train_throughput.py --models gpt2-mini --sides trivium
    python benchmarks/train_throughput.py --precision fp32  # a CPU that does not multiply bfloat16
    python benchmarks/train_throughput.py --full-size
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from side_by_side import (
    Figures,
    compare,
    is_child,
    parser,
    read_metrics,
    step_clock,
    training_arguments,
)

SMALL = {"bert-mini": 128, "gpt2-mini": 128, "llama-mini": 128}
FULL_SIZE = {"gpt2": 1024, "bert-base": 512, "t5-base": 512, "llama3.2-1b": 2048}
"""Preset -> tokens of a row."""
VOCABULARY = 8192


def prepare_shards(text: Path, folder: Path, *, vocab_size: int) -> None:
    """Text as token shards that every model can be trained on.

    The text is too short for a vocabulary of a published size: unused tokens fill it up.
    """
    from trivium.data.prepare import prepare
    from trivium.data.splitting import read_training_texts
    from trivium.text import Tokenizer
    from trivium.text.roles import BERT_SPECIALS, SENTINELS

    unused = (f"<unused{number}>" for number in range(vocab_size - VOCABULARY))
    tokenizer = Tokenizer.train(
        "wordpiece",
        texts=read_training_texts(text),
        vocab_size=vocab_size,
        special_tokens=(*BERT_SPECIALS, *SENTINELS, *unused),
        progress=False,
    )
    prepare(text, tokenizer, folder / f"shards-{vocab_size}")


def spec_of(model: str, vocab_size: int) -> Any:
    """The preset with another vocabulary, without dropout."""
    from trivium.presets import presets

    return presets[model].replace(vocab_size=vocab_size).with_dropout(0.0)


def export(model: str, folder: Path, *, vocab_size: int) -> str:
    """New weights of the preset as a Hugging Face folder for the peer."""
    from trivium.language_model import LanguageModel
    from trivium.models import build

    spec = spec_of(model, vocab_size)
    LanguageModel(spec, build(spec, seed=0)).save_hf(folder / model)
    return str(folder / model)


def run_trivium(job: argparse.Namespace) -> Figures:
    """`trivium.pretrain` on the shards."""
    import trivium

    with tempfile.TemporaryDirectory() as folder:
        changes = [
            f"train.steps={job.warmup + job.steps}",
            f"train.batch_tokens={job.rows * job.length}",
            f"train.micro_batch_tokens={job.micro_rows * job.length}",
            f"data.length={job.length}",
            "optimizer.kind=adamw",
            f"train.precision={job.precision}",
            "train.log_every=1",
            "train.eval_every=1000000",
            "train.save_every=1000000",
        ]
        run = Path(folder, "run")
        trivium.pretrain(job.model, data=job.shards, out=run, changes=changes)
        times = [record["seconds"] for record in read_metrics(run) if "train_loss" in record]
    return figures(job, times) | planned_memory(job)


def run_transformers(job: argparse.Namespace, *, compiled: bool = False) -> Figures:
    """`transformers.Trainer` on rows with the inputs and labels of the same objective."""
    import torch
    import transformers

    batch = objective_batch(job, rows=job.rows * (job.warmup + job.steps))
    arrays = {"input_ids": batch.input_ids, "labels": batch.labels}
    kind = transformers.AutoModelForMaskedLM
    if batch.decoder_input_ids is not None:
        kind = transformers.AutoModelForSeq2SeqLM
        arrays["decoder_input_ids"] = batch.decoder_input_ids
    elif spec_of(job.model, job.vocab_size).family == "decoder-only":
        kind = transformers.AutoModelForCausalLM
        arrays["labels"] = batch.input_ids  # which it shifts itself
    rows = zip(*map(torch.from_numpy, arrays.values()), strict=True)
    examples = [dict(zip(arrays, row, strict=True)) for row in rows]
    clock, times = step_clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(
            folder,
            per_device_train_batch_size=job.micro_rows,
            gradient_accumulation_steps=job.rows // job.micro_rows,
            max_steps=job.warmup + job.steps,
            bf16=job.precision == "bf16",
            torch_compile=compiled,
        )
        model = kind.from_pretrained(job.folder, dtype=torch.float32)
        transformers.Trainer(model, arguments, train_dataset=examples, callbacks=[clock]).train()
    return figures(job, times)


def objective_batch(job: argparse.Namespace, *, rows: int) -> Any:
    """Inputs and labels of the first rows of the text, as the model's objective makes them."""
    from trivium.data import RowRandom, Rows, Shards
    from trivium.objectives import default_objective
    from trivium.text import Tokenizer

    shards = Shards.open(job.shards)
    text = Rows(shards.split("train"), job.length)
    numbers = range(min(rows, len(text)))
    objective = default_objective(spec_of(job.model, job.vocab_size))
    vocabulary = Tokenizer.load(shards.tokenizer_path).vocabulary
    return objective.prepare(text.take(numbers), RowRandom(0, numbers), vocabulary)


def figures(job: argparse.Namespace, times: Sequence[float]) -> Figures:
    """Tokens/s from the times at which steps ended; on a GPU utilization and memory, too."""
    import torch

    from trivium.models import flops_per_token
    from trivium.train.hardware import peak_flops

    seconds = (times[-1] - times[job.warmup - 1]) / job.steps
    found = {"tokens/s": job.rows * job.length / seconds}
    if not torch.cuda.is_available():
        return found
    found["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    peak = peak_flops(torch.device("cuda"), torch.bfloat16)
    if peak is not None:
        flops = job.length * flops_per_token(spec_of(job.model, job.vocab_size), job.length)
        found["% of peak"] = 100 * job.rows * flops / seconds / peak
    return found


def planned_memory(job: argparse.Namespace) -> Figures:
    """What `trivium plan` counts for the peak, where it can be compared: on a GPU."""
    import torch

    from trivium.train.memory import training_memory

    if not torch.cuda.is_available():
        return {}
    memory = training_memory(
        spec_of(job.model, job.vocab_size),
        rows=job.micro_rows,
        length=job.length,
        precision=torch.bfloat16,
    )
    return {"planned GB": sum(memory.values()) / 1e9}


SIDES = {
    "trivium": run_trivium,
    "transformers": run_transformers,
    "transformers, compiled": functools.partial(run_transformers, compiled=True),
}


def make_job(
    model: str,
    text: Path,
    folder: Path,
    *,
    length: int,
    batch_tokens: int,
    vocab_size: int,
    micro_tokens: int = 8192,
    peer: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """What both sides train; its shards and the peer's weights are made in the folder."""
    shards = folder / f"shards-{vocab_size}"
    if not shards.is_dir():
        prepare_shards(text, folder, vocab_size=vocab_size)
    rows = batch_tokens // length
    return {
        "model": model,
        "vocab_size": vocab_size,
        "shards": str(shards),
        "folder": export(model, folder, vocab_size=vocab_size) if peer else "",
        "length": length,
        "rows": rows,
        "micro_rows": min(rows, micro_tokens // length),
        **options,
    }


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--steps", type=int, default=30, help="timed steps of each run")
    options.add_argument("--warmup", type=int, default=5, help="steps before the clock starts")
    options.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="of both")
    options.add_argument("--full-size", action="store_true", help=", ".join(FULL_SIZE))
    options.add_argument("--micro-tokens", type=int, default=8192, help="of a micro-batch")
    options.add_argument("--batch-tokens", type=int, help="of a step")
    options.add_argument("--lengths", type=int, nargs="+", help="of the rows of --models")
    options.add_argument("--folder", type=Path, help="where shards and weights are kept")
    options.add_argument("--models", nargs="+", help="only these; any presets")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    import torch

    from trivium.data.samples import sample_path
    from trivium.presets import presets

    if chosen.full_size and not torch.cuda.is_available():
        raise SystemExit("--full-size needs a GPU, and PyTorch sees none here.")
    if not chosen.full_size:
        chosen.sides = chosen.sides or ["trivium", "transformers"]  # compiling takes minutes
    lengths = FULL_SIZE if chosen.full_size else SMALL
    lengths |= dict(zip(chosen.models or (), chosen.lengths or ()))
    with tempfile.TemporaryDirectory() as place:
        jobs = {}
        for model in chosen.models or lengths:
            jobs[model] = make_job(
                model,
                sample_path("en"),
                chosen.folder or Path(place),
                length=lengths.get(model, 512 if chosen.full_size else 128),
                batch_tokens=chosen.batch_tokens or (32_768 if chosen.full_size else 4096),
                micro_tokens=chosen.micro_tokens,
                peer=chosen.sides != ["trivium"],
                vocab_size=presets[model].vocab_size if chosen.full_size else VOCABULARY,
                steps=chosen.steps,
                warmup=chosen.warmup,
                precision=chosen.precision,
            )
        compare(chosen, SIDES, jobs)


if __name__ == "__main__":
    main()
