"""Seconds from raw text to a validation loss: Trivium against a textbook's `transformers` recipe.

Both get the same text files and nothing else: each trains its WordPiece vocabulary of 8192, encodes
the text, and trains 4 layers x 256 on rows of 128 tokens with 20 % masked; the clock starts with
the process. The textbook's recipe is BERT as published, learning rate 5e-5, batches of 10 rows
accumulated 8 times, float32. `--peer tuned` is what a careful user would find instead: its
ModernBERT in bfloat16, learning rate 2e-3 with warm-up, batches of 16 rows.

    python benchmarks/time_to_loss.py --data wiki.txt --validation wiki.valid.txt

Without arguments both train on the bundled sample, of which every tenth document is held out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STARTED = time.monotonic()
VOCAB, LENGTH, SHARE, EVALUATED_ROWS = 8192, 128, 0.2, 256


def run_trivium(
    options: argparse.Namespace, preset: str, folder: Path
) -> list[tuple[float, float]]:
    """The points (seconds, validation loss) of one `trivium pretrain`."""
    settings = [
        f"train.minutes={options.minutes}",
        f"tokenizer.vocab_size={VOCAB}",
        f"objective.probability={SHARE}",
        f"train.eval_tokens={EVALUATED_ROWS * LENGTH}",
        f"data.validation={options.validation}",
    ]
    command = [sys.executable, "-m", "trivium", "pretrain", preset, "--data", options.data]
    command += ["--out", str(folder), *(f"--set={setting}" for setting in settings)]
    start = time.monotonic()
    subprocess.run(command, check=True)
    whole = time.monotonic() - start
    records = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    points = [(r["seconds"], r["valid_loss"]) for r in records if "valid_loss" in r]
    # The run's own clock starts after its imports; this one starts with the process.
    imports = max(0.0, whole - _own_seconds(folder))
    return [(seconds + imports, loss) for seconds, loss in points]


def _own_seconds(folder: Path) -> float:
    """What the run's own clock showed when it ended."""
    newest = max((folder / "checkpoints").iterdir())
    return json.loads((newest / "state.json").read_text())["seconds"]


def run_transformers(options: argparse.Namespace) -> None:
    """Train with `transformers` and print (seconds, validation loss) as JSON lines."""
    import datasets
    import tokenizers
    import torch
    import transformers

    datasets.disable_progress_bars()
    documents = _read(options.data).split("\n\n")
    held_out = _read(options.validation).split("\n\n")
    trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(documents, vocab_size=VOCAB, show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )

    def encode(texts: list[str]) -> datasets.Dataset:
        def tokenize(rows):
            return tokenizer(rows["text"], return_special_tokens_mask=True)

        def group(rows):
            joined = {key: list(itertools.chain(*rows[key])) for key in rows}
            total = len(joined["input_ids"]) // LENGTH * LENGTH
            return {
                key: [values[i : i + LENGTH] for i in range(0, total, LENGTH)]
                for key, values in joined.items()
            }

        rows = datasets.Dataset.from_dict({"text": texts})
        rows = rows.map(tokenize, batched=True, remove_columns=["text"])
        return rows.map(group, batched=True, batch_size=100)

    train, valid = encode(documents), encode(held_out)
    valid = valid.select(range(min(EVALUATED_ROWS, len(valid))))
    textbook = options.peer == "textbook"
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    if textbook:
        config = transformers.BertConfig(**shape, intermediate_size=1024)
        model = transformers.BertForMaskedLM(config)
        training = {
            "learning_rate": 5e-5,
            "per_device_train_batch_size": 10,
            "gradient_accumulation_steps": 8,
            "num_train_epochs": 10,
            "eval_steps": 25,
            "use_cpu": not torch.cuda.is_available(),
        }
    else:
        config = transformers.ModernBertConfig(
            **shape,
            intermediate_size=688,
            pad_token_id=0,
            cls_token_id=2,
            sep_token_id=3,
            bos_token_id=2,
            eos_token_id=3,
            sparse_prediction=True,
        )
        model = transformers.ModernBertForMaskedLM(config)
        training = {
            "learning_rate": 2e-3,
            "per_device_train_batch_size": 16,
            "warmup_steps": 100,
            "max_steps": 1000,
            "eval_steps": 100,
            "bf16": True,
            "use_cpu": not torch.cuda.is_available(),
        }

    class Clock(transformers.TrainerCallback):
        def on_evaluate(self, arguments, state, control, metrics, **rest) -> None:
            seconds = time.monotonic() - STARTED
            print(json.dumps([seconds, metrics["eval_loss"]]), flush=True)
            control.should_training_stop = seconds > 60 * options.peer_minutes

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        transformers.Trainer(
            model,
            transformers.TrainingArguments(
                folder,
                **training,
                per_device_eval_batch_size=64,
                eval_strategy="steps",
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                logging_strategy="no",
            ),
            data_collator=transformers.DataCollatorForLanguageModeling(
                tokenizer, mlm_probability=SHARE
            ),
            train_dataset=train,
            eval_dataset=valid,
            callbacks=[Clock()],
        ).train()


def split_sample(folder: Path) -> tuple[str, str]:
    """The bundled English text as two files, every tenth document held out."""
    from trivium.data.samples import sample

    documents = _read(str(sample("en"))).split("\n\n")
    train = [text for i, text in enumerate(documents) if i % 10]
    paths = folder / "train.txt", folder / "valid.txt"
    for path, texts in zip(paths, (train, documents[::10]), strict=True):
        path.write_text("\n\n".join(texts), encoding="utf-8")
    return str(paths[0]), str(paths[1])


def _read(path: str) -> str:
    opened = lzma.open if path.endswith(".xz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read()


def first_below(points: list[tuple[float, float]], loss: float) -> float | None:
    """Seconds at which the loss was first reached."""
    return next((seconds for seconds, found in points if found <= loss), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="training text, .txt or .txt.xz; default: the sample")
    parser.add_argument("--validation", help="held-out text; needed with --data")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--peer", choices=("textbook", "tuned", "none"), default="textbook")
    parser.add_argument("--peer-minutes", type=float, default=8.0)
    parser.add_argument("--presets", nargs="+", default=["modernbert-mini", "bert-mini"])
    parser.add_argument("--only-peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_peer:
        run_transformers(options)
        return
    if (options.data is None) != (options.validation is None):
        parser.error("--data and --validation go together")
    found: dict[str, list[tuple[float, float]]] = {}
    theirs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            options.data, options.validation = split_sample(Path(folder))
        for preset in options.presets:
            found[preset] = run_trivium(options, preset, Path(folder) / preset)
        if options.peer != "none":
            texts = ["--data", options.data, "--validation", options.validation]
            command = [sys.executable, __file__, *sys.argv[1:], *texts, "--only-peer"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            lines = done.stdout.splitlines()
            theirs = [tuple(json.loads(line)) for line in lines if line.startswith("[")]
    for name, points in {**found, f"transformers ({options.peer})": theirs}.items():
        curve = "  ".join(f"{loss:.2f} at {seconds:.0f} s" for seconds, loss in points)
        print(f"{name}: {curve or 'not run'}")
    if theirs:
        seconds, loss = min(theirs, key=lambda point: point[1])
        for name, points in found.items():
            ours = first_below(points, loss)
            if ours is None:
                print(f"{name} did not reach {loss:.2f}")
                continue
            print(
                f"{name} reaches {loss:.2f} at {ours:.0f} s, transformers at {seconds:.0f} s: "
                f"{ours / seconds:.3f} of the time"
            )


if __name__ == "__main__":
    main()
