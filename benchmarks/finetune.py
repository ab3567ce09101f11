"""Quality and time of fine-tuning: Trivium against `transformers` on the same examples.

"classification" fine-tunes the same folder of weights on labelled texts for the same number of
passes; by default random weights of a mini BERT, so --model is what makes it interesting.
"translation" trains the same Marian shape (4 + 4 layers x 256) from scratch on the same ids of a
TSV file of pairs. Reported are the metric on the same held-out examples, and seconds.

    python benchmarks/finetune.py --model bert-folder/ --classification train.jsonl valid.jsonl
    python benchmarks/finetune.py --tasks translation --translation en-fr.tsv en-fr.valid.tsv
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import Figures, compare, is_child, parser, training_arguments

LENGTH, ROWS, PAIRS, PAD, END = 128, 16, 64, 0, 1
METRICS = {"classification": "accuracy", "translation": "bleu"}


def split_sample(name: str, folder: Path) -> list[str]:
    """Bundled examples as two files: every tenth line is held out."""
    from trivium.data.samples import copy_samples

    copy_samples(folder)
    path = folder / name
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    parts = {"train": [line for i, line in enumerate(lines) if i % 10], "valid": lines[::10]}
    paths = [path.with_stem(f"{path.stem}-{part}") for part in parts]
    for part, out in zip(parts.values(), paths, strict=True):
        out.write_text("".join(part), encoding="utf-8")
    return [str(path) for path in paths]


def random_bert(train: str, folder: Path) -> str:
    """A mini BERT with random weights and a tokenizer of the texts, as a Hugging Face folder."""
    from trivium.data import read_records
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets
    from trivium.text import Tokenizer

    texts = [record.text("text") for record in read_records(train)]
    tokenizer = Tokenizer.train("wordpiece", texts=texts, vocab_size=2000, progress=False)
    spec = presets["bert-mini"].replace(vocab_size=tokenizer.vocab_size)
    LanguageModel(spec, build(spec, seed=0), tokenizer).save_hf(folder)
    return str(folder)


def run_trivium(job: argparse.Namespace) -> Figures:
    """`trivium.finetune`."""
    import trivium

    changes = [f"train.epochs={job.epochs}", f"data.length={LENGTH}"]
    model = job.model
    if job.task == "translation":
        model = "marian-mini"
        changes += [f"tokenizer.vocab_size={job.vocab_size}", f"train.batch_examples={PAIRS}"]
    else:
        changes += [f"train.batch_examples={ROWS}", "optimizer.lr=5e-5"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        started = time.perf_counter()
        trivium.finetune(
            job.task, model=model, data=job.train, validation=job.valid, out=run, changes=changes
        )
        seconds = time.perf_counter() - started
        values = json.loads((run / "evaluation.json").read_text())["values"]
    return {"seconds": seconds, METRICS[job.task]: values[METRICS[job.task]]}


def run_transformers(job: argparse.Namespace) -> Figures:
    """`transformers`' Trainer, or its Seq2SeqTrainer."""
    return classify(job) if job.task == "classification" else translate(job)


def classify(job: argparse.Namespace) -> Figures:
    import torch
    import transformers

    from trivium.data import read_records

    started = time.perf_counter()
    train, valid = (list(read_records(path)) for path in (job.train, job.valid))
    names = sorted({record["label"] for record in train})
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.model)

    def encode(records: list[Any]) -> list[dict[str, Any]]:
        ids = tokenizer([r["text"] for r in records], truncation=True, max_length=LENGTH)
        pairs = zip(ids["input_ids"], records, strict=True)
        return [{"input_ids": row, "labels": names.index(r["label"])} for row, r in pairs]

    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        job.model, num_labels=len(names)
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            network,
            training_arguments(
                folder,
                per_device_train_batch_size=ROWS,
                num_train_epochs=job.epochs,
                learning_rate=5e-5,
            ),
            train_dataset=encode(train),
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
        )
        trainer.train()
        logits = torch.tensor(trainer.predict(encode(valid)).predictions)
    right = [names[i] == r["label"] for i, r in zip(logits.argmax(-1).tolist(), valid, strict=True)]
    return {"seconds": time.perf_counter() - started, "accuracy": sum(right) / len(right)}


def translate(job: argparse.Namespace) -> Figures:
    import sacrebleu
    import transformers

    from trivium.data.records import RecordOptions, read_records
    from trivium.text import Tokenizer

    started = time.perf_counter()
    options = RecordOptions(header=["source", "target"])
    train, valid = (list(read_records(path, options)) for path in (job.train, job.valid))
    tokenizer = Tokenizer.train(
        "unigram",
        texts=[text for record in train for text in record.values()],
        vocab_size=job.vocab_size,
        special_tokens=("<pad>", "</s>", "<unk>"),
        progress=False,
    )

    sources, targets = ([record[name] for record in train] for name in ("source", "target"))
    with tempfile.TemporaryDirectory() as folder:
        weights = marian(tokenizer.vocab_size, Path(folder, "marian"))
        network = transformers.MarianMTModel.from_pretrained(weights)
    config = network.generation_config
    config.bad_words_ids, config.pad_token_id, config.eos_token_id = None, PAD, END
    config.decoder_start_token_id, config.forced_eos_token_id = PAD, END
    network.config.pad_token_id, network.config.eos_token_id = PAD, END
    network.config.decoder_start_token_id = PAD

    with tempfile.TemporaryDirectory() as folder:
        transformers.Seq2SeqTrainer(
            network,
            training_arguments(
                folder,
                kind=transformers.Seq2SeqTrainingArguments,
                per_device_train_batch_size=PAIRS,
                num_train_epochs=job.epochs,
                learning_rate=1e-3,
                warmup_steps=10,
                label_smoothing_factor=0.1,
                train_sampling_strategy="group_by_length",
                remove_unused_columns=False,
                bf16=True,
            ),
            train_dataset=encoded_pairs(tokenizer, sources, targets),
            data_collator=Collator(network),
        ).train()
    outputs = translations(network, tokenizer, [record["source"] for record in valid], beams=4)
    score = sacrebleu.corpus_bleu(outputs, [[record["target"] for record in valid]]).score / 100
    return {"seconds": time.perf_counter() - started, "bleu": score}


def encoded_pairs(tokenizer: Any, sources: list[str], targets: list[str]) -> list[dict[str, Any]]:
    """Ids of the peer's examples."""
    pairs = zip(encode(tokenizer, sources), encode(tokenizer, targets), strict=True)
    return [{"input_ids": source, "labels": target} for source, target in pairs]


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [[*ids[: LENGTH - 1], END] for ids in tokenizer.encode_ids_batch(texts)]


def padded(rows: list[list[int]], fill: int) -> Any:
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


@dataclass
class Collator:
    """Batches of pairs as long as their longest, for a model of `transformers`."""

    network: Any

    def __call__(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        ids = padded([row["input_ids"] for row in batch], PAD)
        labels = padded([row["labels"] for row in batch], -100)
        # Label smoothing takes the labels away from the model, which shifts them otherwise.
        decoder_ids = self.network.prepare_decoder_input_ids_from_labels(labels)
        mask = (ids != PAD).long()
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder_ids}
        return {**inputs, "labels": labels}


def translations(network: Any, tokenizer: Any, texts: list[str], *, beams: int) -> list[str]:
    """What a model of `transformers` generates, at most as long as Trivium does."""
    outputs = []
    for start in range(0, len(texts), PAIRS):
        rows = encode(tokenizer, texts[start : start + PAIRS])
        ids, limits = padded(rows, PAD).to(network.device), [2 * len(row) + 16 for row in rows]
        output = network.generate(
            ids, attention_mask=(ids != PAD).long(), num_beams=beams, max_new_tokens=max(limits)
        )
        # The first id is the decoder's start.
        cut = [row[1 : 1 + limit] for row, limit in zip(output.tolist(), limits, strict=True)]
        outputs += tokenizer.decode_batch(cut)
    return outputs


def marian(vocab_size: int, folder: Path) -> str:
    """New weights of our `marian-mini` as a Hugging Face folder."""
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets

    spec = presets["marian-mini"].replace(vocab_size=vocab_size)
    LanguageModel(spec, build(spec, seed=0)).save_hf(folder)
    return str(folder)


SIDES = {"trivium": run_trivium, "transformers": run_transformers}


def main() -> None:
    options = parser(__doc__, rounds=1)
    options.add_argument("--tasks", nargs="+", choices=METRICS, default=list(METRICS))
    options.add_argument("--model", help="Hugging Face folder of an encoder; default: random")
    files = {"nargs": 2, "metavar": ("TRAIN", "VALID")}
    options.add_argument("--classification", **files, help="JSON lines of text and label")
    options.add_argument("--translation", **files, help="TSV files of source and target")
    options.add_argument("--epochs", type=float, default=3.0)
    options.add_argument("--vocab-size", type=int, default=4000, help="of translation")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        jobs = {}
        for task in chosen.tasks:
            name = {"classification": "movies.jsonl", "translation": "english-french.tsv"}[task]
            train, valid = getattr(chosen, task) or split_sample(name, place / task)
            job = {"task": task, "train": train, "valid": valid, "epochs": chosen.epochs}
            if task == "classification":
                job["model"] = chosen.model or random_bert(train, place / "bert")
            else:
                job |= {"model": None, "vocab_size": chosen.vocab_size}
            jobs[task] = job
        compare(chosen, SIDES, jobs)


if __name__ == "__main__":
    main()
