"""Minutes from raw pairs of sentences to BLEU: Trivium, and the best found for `transformers`.

Both train Marian's shape, 4 + 4 layers x 256, to translate, and clocks start with the process. The
peer trains for some minutes. Then Trivium, with nothing set but vocabulary and minutes, trains anew
for shares of them: which is enough to be as good? Generating the translations that are compared, of
pairs from all of the held-out ones by the same beam search, is not in the seconds.

`transformers` does not train tokenizers of Marian. It gets ours, trained on as much text as ours of
the shortest run. The rest is its own: `MarianMTModel` and its random start, bf16, `Seq2SeqTrainer`
with batches of similar lengths and label smoothing, and AdamW, whose rate rises for 50 steps and
falls by the clock to the end of the minutes.

    python benchmarks/time_to_bleu.py --data train.tsv --validation valid.tsv --minutes 10
    python benchmarks/time_to_bleu.py --sides transformers --rate 5e-4 --rows 128 --dropout 0.1

Without --data the bundled English-French pairs are used, of which every tenth is held out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import sacrebleu
import torch
import transformers
from finetune import END, PAD, Collator, encoded_pairs, split_sample, translations
from side_by_side import (
    Figures,
    is_child,
    shortest_minutes,
    time_share,
    timed_parser,
    timed_runs,
    training_arguments,
)
from time_to_loss import Clock, falling

import trivium
from trivium.objectives.seq2seq import Translation, choose_bleu_tokenizer
from trivium.text import Tokenizer
from trivium.train.defaults import choose_sample_bytes

RATE, ROWS = 5e-4, 32


def run_trivium(job: argparse.Namespace) -> Figures:
    """One `trivium.finetune`, its steps, and the BLEU of its weights."""
    minutes = job.minutes - (time.monotonic() - job.started) / 60
    with tempfile.TemporaryDirectory() as folder:
        changes = [
            f"train.minutes={minutes}",
            f"tokenizer.vocab_size={job.vocab_size}",
            "train.eval_every=1000000",
            *job.settings,
        ]
        run = trivium.finetune(
            "translation",
            model="marian-mini",
            data=job.data,
            validation=[job.validation],
            out=Path(folder, "run"),
            changes=changes,
        )
        seconds = time.monotonic() - job.started
        records = run.read_metrics()
        trained = [record for record in records if "train_loss" in record][-1]
        generating = records[-1]["seconds"] - trained["seconds"]
        generating += run.read_metadata()["evaluation_seconds"]
        lm = trivium.load(run.path)
    sources, references = read_pairs(job.validation)
    answers = lm.translate(sources, num_beams=job.beams)
    return {
        **scores(answers, references),
        "steps": trained["step"],
        "seconds": seconds - generating,
        "prepared": trained["seconds"] - 60 * minutes,
    }


def run_transformers(job: argparse.Namespace) -> Figures:
    """One `transformers.Seq2SeqTrainer`, its steps, and the BLEU of its weights."""
    end, rate = job.started + 60 * job.minutes, job.rate or RATE
    torch.manual_seed(0)
    sources, targets = read_pairs(job.data)
    tokenizer = Tokenizer.train(
        "unigram",
        texts=[*sources, *targets],
        vocab_size=job.vocab_size,
        special_tokens=("<pad>", "</s>", "<unk>", "<s>"),
        sample_bytes=job.sample_bytes,
        progress=False,
    )
    rows = encoded_pairs(tokenizer, sources, targets)
    model = marian(tokenizer.vocab_size, job.dropout)
    prepared = time.monotonic() - job.started
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Seq2SeqTrainer(
            model,
            training_arguments(
                folder,
                kind=transformers.Seq2SeqTrainingArguments,
                per_device_train_batch_size=job.rows or ROWS,
                max_steps=1_000_000,
                label_smoothing_factor=job.smoothing,
                train_sampling_strategy="group_by_length",
                remove_unused_columns=False,
                bf16=True,
            ),
            train_dataset=rows,
            data_collator=Collator(model),
            optimizers=falling(model, rate, end),
            callbacks=[Clock(end)],
        )
        trainer.train()
    seconds = time.monotonic() - job.started
    sources, references = read_pairs(job.validation)
    answers = translations(model.eval(), tokenizer, sources, beams=job.beams)
    return {
        **scores(answers, references),
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "prepared": prepared,
    }


def marian(vocab_size: int, dropout: float) -> Any:
    """As `marian-mini`."""
    sizes = {"layers": 4, "attention_heads": 4, "ffn_dim": 1024}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}
    config = transformers.MarianConfig(
        vocab_size=vocab_size,
        d_model=256,
        max_position_embeddings=512,
        activation_function="swish",
        scale_embedding=True,
        dropout=dropout,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        **sides,
    )
    return transformers.MarianMTModel(config)


def read_pairs(path: str) -> tuple[list[str], list[str]]:
    """Sources and targets of a file, as Trivium reads them."""
    examples = list(Translation().read([path]))
    return [one.source for one in examples], [one.targets[0] for one in examples]


def scores(answers: list[str], references: list[str]) -> Figures:
    """From 0 to 100, as papers have them."""
    tokenizer = choose_bleu_tokenizer(references)
    bleu = sacrebleu.corpus_bleu(answers, [references], force=True, tokenize=tokenizer)
    return {"BLEU": bleu.score, "chrF": sacrebleu.corpus_chrf(answers, [references]).score}


def part_of(path: str, count: int, out: Path) -> str:
    """A file of so many pairs from all of a file, which may be sorted by length."""
    pairs = list(zip(*read_pairs(path), strict=True))
    count = min(count, len(pairs))
    chosen = [pairs[len(pairs) * number // count] for number in range(count)]
    lines = (json.dumps({"source": source, "target": target}) for source, target in chosen)
    out.write_text("\n".join(lines), encoding="utf-8")
    return str(out)


SIDES = {"trivium": run_trivium, "transformers": run_transformers}


def main() -> None:
    options = timed_parser(__doc__, minutes=10.0, shares=[1 / 3, 1.0])
    options.add_argument("--data", help="training pairs, .tsv; default: the bundled ones")
    options.add_argument("--validation", help="held-out pairs; needed with --data")
    options.add_argument("--pairs", type=int, default=300, help="of them that are translated")
    options.add_argument("--beams", type=int, default=4, help="of both; 1: greedy")
    options.add_argument("--dropout", type=float, default=0.0, help="of the peer")
    options.add_argument("--smoothing", type=float, default=0.1, help="of the peer's labels")
    chosen = options.parse_args()
    if is_child(chosen, SIDES):
        return
    if (chosen.data is None) != (chosen.validation is None):
        options.error("--data and --validation go together")
    with tempfile.TemporaryDirectory() as folder:
        if chosen.data is None:
            chosen.data, chosen.validation = split_sample("english-french.tsv", Path(folder))
        chosen.validation = part_of(chosen.validation, chosen.pairs, Path(folder, "held-out.jsonl"))
        names = ("data", "validation", "vocab_size", "settings", "rate", "rows")
        job = {name: getattr(chosen, name) for name in (*names, "beams", "dropout", "smoothing")}
        minutes = shortest_minutes(chosen)
        job["sample_bytes"] = choose_sample_bytes(Tokenizer.kinds["unigram"], minutes)
        print("| side | prepared | seconds | steps | BLEU | chrF | of the peer's time |")
        print("|---|---|---|---|---|---|---|")
        for side, figures, peer in timed_runs(chosen, job):
            print(row(side, figures, peer), flush=True)


def row(side: str, figures: Figures, peer: Figures) -> str:
    """Of the table. `peer` is empty where it did not run."""
    cells = [side, *(f"{figures[name]:,.0f}" for name in ("prepared", "seconds", "steps"))]
    cells += [f"{figures[name]:.1f}" for name in ("BLEU", "chrF")]
    share = time_share(figures, peer, as_good=lambda ours, its: ours["BLEU"] >= its["BLEU"])
    return f"| {' | '.join([*cells, share])} |"


if __name__ == "__main__":
    main()
