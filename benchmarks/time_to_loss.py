"""Minutes from raw text to a validation loss: Trivium, and the best found for `transformers`.

Every family is a model of 4 layers (encoder-decoders 4 + 4) x 256 on rows of 128 tokens; clocks
start with the process. The peer trains for some minutes. Then Trivium, with nothing set but row
length, vocabulary and minutes, trains anew for shares of them: which is enough to be as good?

`transformers` has neither a preparation of text nor batches of span corruption and of denoising. It
gets ours, so that losses are of the same tokens; tokenizers are trained on as much text as ours of
the shortest run. The rest is its own: model, bf16, `Trainer`, and AdamW, whose rate rises for 50
steps and falls by the clock to the end of the minutes. Its rates are the best of few tried, which
RESULTS.md lists. "textbook" is BERT at 5e-5 in float32, 80 rows a step, as textbooks train it,
against the encoder that README trains; "nanogpt" and "minimind" are the models of these two
projects, from checkouts that the variables NANOGPT and MINIMIND name.

    python benchmarks/time_to_loss.py --data wiki.txt --validation wiki.valid.txt --minutes 4
    python benchmarks/time_to_loss.py --families decoder --shares 0.25 --set optimizer.kind=adamw
    python benchmarks/time_to_loss.py --families t5 --sides transformers --rate 1e-3
    NANOGPT=../nanoGPT MINIMIND=../minimind python benchmarks/time_to_loss.py \\
        --families nanogpt minimind

Without --data the bundled English text is used, of which every tenth document is held out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from side_by_side import (
    Figures,
    is_child,
    shortest_minutes,
    time_share,
    timed_parser,
    timed_runs,
    training_arguments,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from transformers.modeling_outputs import CausalLMOutput

import trivium
from trivium.data import Batch, Rows, Shards, read_documents
from trivium.data.prepare import prepare
from trivium.data.samples import sample_path
from trivium.data.shards import TRAIN, VALIDATION
from trivium.data.splitting import CorpusOptions, read_training_texts
from trivium.objectives import Objective
from trivium.objectives.causal import Causal
from trivium.objectives.denoising import Denoising
from trivium.objectives.masked import Masked
from trivium.objectives.span_corruption import SpanCorruption
from trivium.objectives.tensor_batch import to_device
from trivium.text import Tokenizer
from trivium.train.defaults import choose_sample_bytes
from trivium.train.loader import BatchStream

LENGTH = 128
SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}


@dataclass(frozen=True)
class Family:
    """What is trained.

    Args:
        preset: of ours.
        objective: of the losses that are compared, and of the peer's training.
        peer: the peer's model for a size of vocabulary.
        rate, rows: of the peer's steps, in so many parts.
        falls: the rate falls, and the peer trains in bf16.
    """

    preset: str
    tokenizer: str
    objective: Objective
    peer: Callable[[int], Any]
    rate: float
    rows: int = 16
    parts: int = 1
    falls: bool = True


def llama(vocab_size: int) -> Any:
    """As `llama-mini`."""
    config = transformers.LlamaConfig(
        vocab_size=vocab_size, intermediate_size=688, num_key_value_heads=2, **SIZES
    )
    return transformers.LlamaForCausalLM(config)


def modernbert(vocab_size: int) -> Any:
    """As `modernbert-mini` but for its windows."""
    ids = {f"{name}_token_id": 0 for name in ("pad", "cls", "sep", "bos", "eos")}
    config = transformers.ModernBertConfig(
        vocab_size=vocab_size, intermediate_size=384, sparse_prediction=True, **SIZES, **ids
    )
    return transformers.ModernBertForMaskedLM(config)


def bert(vocab_size: int) -> Any:
    """As `bert-mini`."""
    config = transformers.BertConfig(vocab_size=vocab_size, intermediate_size=1024, **SIZES)
    return transformers.BertForMaskedLM(config)


def t5(vocab_size: int) -> Any:
    """As `t5-mini`, without dropout."""
    sizes = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 4}
    config = transformers.T5Config(vocab_size=vocab_size, dropout_rate=0.0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def bart(vocab_size: int) -> Any:
    """As `bart-mini`, without dropout."""
    sizes = {"layers": 4, "attention_heads": 4, "ffn_dim": 1024}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}
    config = transformers.BartConfig(vocab_size=vocab_size, d_model=256, dropout=0.0, **sides)
    return transformers.BartForConditionalGeneration(config)


class NanoGPT(nn.Module):
    """nanoGPT's model, 4 layers x 256 as the others, called as those of `transformers` are."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        sys.path.append(os.environ["NANOGPT"])
        from model import GPT, GPTConfig  # type: ignore[import-not-found]

        sizes = {"n_layer": 4, "n_head": 4, "n_embd": 256, "block_size": LENGTH}
        self.gpt = GPT(GPTConfig(vocab_size=vocab_size, dropout=0.0, bias=False, **sizes))

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, **_: Tensor
    ) -> CausalLMOutput:
        """Shifts labels itself; nanoGPT has logits of all tokens only where there are targets."""
        targets = input_ids if labels is None else pad(labels[:, 1:], (0, 1), value=-1)
        logits, loss = self.gpt(input_ids, targets)
        return CausalLMOutput(loss=loss, logits=logits)


def minimind(vocab_size: int) -> Any:
    """minimind's model, 4 layers x 256 as the others; its token vectors are tied."""
    sys.path.append(os.environ["MINIMIND"])
    from model.model_minimind import (  # type: ignore[import-not-found]
        MiniMindConfig,
        MiniMindForCausalLM,
    )

    config = MiniMindConfig(
        vocab_size=vocab_size, intermediate_size=688, num_key_value_heads=2, **SIZES
    )
    return MiniMindForCausalLM(config)


FAMILIES = {
    "decoder": Family("llama-mini", "byte-bpe", Causal(), llama, 2e-3),
    "encoder": Family("modernbert-mini", "wordpiece", Masked(), modernbert, 1e-3),
    "t5": Family("t5-mini", "unigram", SpanCorruption(), t5, 2e-3),
    "bart": Family("bart-mini", "byte-bpe", Denoising(), bart, 3e-4),
    "textbook": Family("modernbert-mini", "wordpiece", Masked(), bert, 5e-5, 80, 8, falls=False),
    "nanogpt": Family("llama-mini", "byte-bpe", Causal(), NanoGPT, 1e-3),
    "minimind": Family("llama-mini", "byte-bpe", Causal(), minimind, 2e-3),
}
CHECKOUTS = {"nanogpt": "NANOGPT", "minimind": "MINIMIND"}
"""The variables that name the folders of projects, by family."""


def run_trivium(job: argparse.Namespace) -> Figures:
    """One `trivium.pretrain`, its steps, and the loss at its end."""
    family = FAMILIES[job.family]
    minutes = job.minutes - (time.monotonic() - job.started) / 60
    with tempfile.TemporaryDirectory() as folder:
        changes = [
            f"train.minutes={minutes}",
            f"tokenizer.vocab_size={job.vocab_size}",
            f"data.length={LENGTH}",
            f"data.validation=['{job.validation}']",
            "train.eval_every=1000000",
            *job.settings,
        ]
        run = trivium.pretrain(
            family.preset, data=job.data, out=Path(folder, "run"), changes=changes
        )
        [*_, last] = run.read_metrics()
        seconds = time.monotonic() - job.started
        lm, shards = trivium.load(run.path), Shards.open(run.path / "shards")
        batches = held_out(family, shards, lm.text_tokenizer)

    def nats(batch: Batch) -> float:
        losses = family.objective.loss(lm.module, to_device(batch, torch.device("cpu")))
        return sum(loss.item() for loss in losses.values())

    return {
        "loss": mean_loss(nats, batches),
        "steps": last["step"],
        "seconds": seconds,
        "prepared": last["seconds"] - 60 * minutes,
    }


def run_transformers(job: argparse.Namespace) -> Figures:
    """One `transformers.Trainer`, its steps, and the loss at its end."""
    family, end = FAMILIES[job.family], job.started + 60 * job.minutes
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        options = CorpusOptions(validation=[job.validation])
        keys = {"kind": family.tokenizer, "vocab_size": job.vocab_size, "progress": False}
        keys |= {"sample_bytes": job.sample_bytes}
        keys |= family.objective.tokenizer_defaults(trivium.presets[family.preset])
        tokenizer = Tokenizer.train(texts=read_training_texts([job.data], options), **keys)
        shards = prepare([job.data], tokenizer, Path(folder, "shards"), options=options)
        prepared = time.monotonic() - job.started
        rows = Rows(shards.split(TRAIN), LENGTH)
        stream = BatchStream(
            "", family.objective, rows, tokenizer.vocabulary, rows_per_step=job.rows or family.rows
        )
        model = family.peer(job.vocab_size)
        rate = job.rate or family.rate
        trainer = transformers.Trainer(
            model,
            training_arguments(
                folder,
                per_device_train_batch_size=1,
                gradient_accumulation_steps=family.parts,
                max_steps=1_000_000,
                learning_rate=rate,
                bf16=family.falls,
                torch_compile=job.compile,
            ),
            data_collator=lambda batches: batches[0],
            train_dataset=Steps(stream, family.parts),
            optimizers=falling(model, rate, end) if family.falls else (None, None),
            callbacks=[Clock(end)],
        )
        trainer.train()
        seconds = time.monotonic() - job.started
        batches = held_out(family, shards, tokenizer)
    model.eval()

    def nats(batch: Batch) -> float:
        inputs = peer_inputs(batch)
        labels = inputs.pop("labels")
        logits = model(**inputs).logits.flatten(0, 1).float()
        return cross_entropy(logits, labels.flatten(), reduction="sum").item()

    return {
        "loss": mean_loss(nats, batches),
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "prepared": prepared,
    }


def falling(model: Any, rate: float, end: float) -> tuple[Any, Any]:
    """AdamW, and a rate that rises for 50 steps and falls to 0 at `end`."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, (0.9, 0.95), weight_decay=0.1)
    start = time.monotonic()

    def share(step: int) -> float:
        left = max(0.0, (end - time.monotonic()) / (end - start))
        return min(left, (step + 1) / 50)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


class Clock(transformers.TrainerCallback):
    """Stops training at a time."""

    def __init__(self, end: float) -> None:
        self.end = end

    def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        """After every step."""
        control.should_training_stop = time.monotonic() > self.end


class Steps(torch.utils.data.IterableDataset):
    """The batches of all steps of a stream, in so many parts each, as the peer's inputs."""

    def __init__(self, stream: BatchStream, parts: int) -> None:
        self.stream, self.tokens = stream, stream.rows_per_step * LENGTH // parts

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            for batch in self.stream.step(number, self.tokens).micro_batches:
                inputs = peer_inputs(batch)
                if isinstance(self.stream.objective, Causal):  # the peer shifts labels itself
                    inputs["labels"] = inputs["input_ids"]
                yield inputs


def peer_inputs(batch: Batch) -> dict[str, Any]:
    """A batch in the names of `transformers`, which are ours."""
    return {name: torch.from_numpy(array) for name, array in batch.arrays().items()}


def held_out(family: Family, shards: Shards, tokenizer: Tokenizer) -> tuple[Batch, ...]:
    """All rows of the validation text."""
    rows = Rows(shards.split(VALIDATION), LENGTH)
    stream = BatchStream("", family.objective, rows, tokenizer.vocabulary)
    batches = stream.validation_batches(len(rows) * LENGTH)
    return tuple(part for batch in batches for part in batch.micro_batches)


@torch.inference_mode()
def mean_loss(nats: Callable[[Batch], float], batches: tuple[Batch, ...]) -> float:
    """Per label."""
    return sum(map(nats, batches)) / sum(batch.num_labels for batch in batches)


def split_sample(folder: Path) -> tuple[str, str]:
    """The bundled English text as two files, every tenth document held out."""
    documents = [document.text for document in read_documents(sample_path("en"))]
    train = [text for number, text in enumerate(documents) if number % 10]
    paths = folder / "train.txt", folder / "valid.txt"
    for path, texts in zip(paths, (train, documents[::10]), strict=True):
        path.write_text("\n\n".join(texts), encoding="utf-8")
    return str(paths[0]), str(paths[1])


SIDES = {"trivium": run_trivium, "transformers": run_transformers}


def main() -> None:
    options = timed_parser(__doc__, minutes=4.0, shares=[0.25, 0.5, 1.0])
    options.add_argument("--data", help="training text, .txt; default: the bundled sample")
    options.add_argument("--validation", help="held-out text; needed with --data")
    missing = {name: folder for name, folder in CHECKOUTS.items() if folder not in os.environ}
    default = [name for name in FAMILIES if name not in missing]
    options.add_argument("--families", nargs="+", choices=FAMILIES, default=default)
    options.add_argument("--compile", action="store_true", help="the peer by torch.compile")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    for name in [name for name in chosen.families if name in missing]:
        options.error(
            f"{name} needs its repository: set the variable {missing[name]} to a checkout"
        )
    if (chosen.data is None) != (chosen.validation is None):
        options.error("--data and --validation go together")
    with tempfile.TemporaryDirectory() as folder:
        if chosen.data is None:
            chosen.data, chosen.validation = split_sample(Path(folder))
        names = ("data", "validation", "vocab_size", "settings", "rate", "rows", "compile")
        shared = {name: getattr(chosen, name) for name in names}
        print("| family | side | prepared | seconds | steps | loss | of the peer's time |")
        print("|---|---|---|---|---|---|---|")
        for family in chosen.families:
            kind = Tokenizer.kinds[FAMILIES[family].tokenizer]
            job = {
                "family": family,
                "sample_bytes": choose_sample_bytes(kind, shortest_minutes(chosen)),
            }
            for side, figures, peer in timed_runs(chosen, shared | job):
                print(row(family, side, figures, peer), flush=True)


def row(family: str, side: str, figures: Figures, peer: Figures) -> str:
    """Of the table. `peer` is empty where it did not run."""
    cells = [family, side, *(f"{figures[name]:,.0f}" for name in ("prepared", "seconds", "steps"))]
    share = time_share(figures, peer, as_good=lambda ours, its: ours["loss"] <= its["loss"])
    return f"| {' | '.join([*cells, format(figures['loss'], '.3f'), share])} |"


if __name__ == "__main__":
    main()
