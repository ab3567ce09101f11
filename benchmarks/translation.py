"""Training a translation model: Trivium against `transformers`' Seq2SeqTrainer on the same work.

Both train the same Marian shape (4 + 4 layers x 256, vocabulary 8192) on the same pairs, 256 a
step, with label smoothing, in bfloat16, each in a process of its own, in turn. A token is a real
one, of a source or a target; padding counts for nobody. Printed are medians over the pairs and the
median of their ratios.

    python benchmarks/translation.py --pairs 3 --steps 20
    python benchmarks/translation.py --file en-fr.tsv
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VOCAB, PER_STEP, LONGEST, SMOOTHING = 8192, 256, 64, 0.1
PAD, END = 0, 1


def pairs_of(file: str | None) -> list[tuple[list[int], list[int]]]:
    """Ids of sources and targets: of a file of pairs, or random ones of such lengths."""
    if file is None:
        random = np.random.default_rng(0)
        # Lengths as of Tatoeba's sentences: about 9 tokens, some three times as long.
        sizes = np.clip(random.lognormal(2.1, 0.4, (20_000, 2)).astype(int), 3, LONGEST - 1)
        return [
            ([*random.integers(4, VOCAB, a), END], [*random.integers(4, VOCAB, b), END])
            for a, b in sizes.tolist()
        ]
    from trivium import Tokenizer
    from trivium.data.labelled import PairSource, read_pairs

    found = read_pairs([PairSource([file])])
    texts = [text for each in found for text in (each.source, each.targets[0])]
    tokenizer = Tokenizer.train(
        "unigram", texts=texts, vocab_size=VOCAB, special_tokens=("<pad>", "</s>", "<unk>")
    )
    ids = [[*row[: LONGEST - 1], END] for row in tokenizer.encode_ids_batch(texts)]
    return list(zip(ids[::2], ids[1::2]))


def run_trivium(file: str | None, steps: int, warm: int) -> float:
    """Real tokens a second of the training loop, without its first steps."""

    from trivium.data import Examples
    from trivium.models import build
    from trivium.objectives.told_tokens import ToldTokens
    from trivium.optim.optimizers import adamw, remember_peaks
    from trivium.presets import presets
    from trivium.train import hardware
    from trivium.train.checkpoint import TrainState
    from trivium.train.feed import ExampleFeed
    from trivium.train.loop import Evaluation, Plan, train

    hardware.keep_freed_memory()
    spec = presets["marian-mini"].replace(vocab_size=VOCAB).with_dropout(0.0)
    pairs = pairs_of(file)
    examples = Examples(
        {
            "input_ids": [source for source, _ in pairs],
            "decoder_input_ids": [[PAD, *target[:-1]] for _, target in pairs],
            "labels": [target for _, target in pairs],
        },
        pad_id=PAD,
    )
    noted: list[tuple[float, int]] = []

    class Watch:
        def logged(self, record, progress) -> None:
            noted.append((time.perf_counter(), record["tokens"]))

        def evaluate(self, state) -> Evaluation:
            return Evaluation()

        def evaluated(self, record) -> None: ...

        def save(self, state) -> None: ...

    device = hardware.choose_device("auto")
    network = build(spec, device=device)
    optimizers = adamw(network, lr=1e-3)
    remember_peaks(optimizers)
    feed = ExampleFeed(
        ToldTokens(smoothing=SMOOTHING),
        examples,
        seed=0,
        examples_per_step=PER_STEP,
        micro_tokens=4096,
    )
    plan = Plan(
        seed=0,
        precision=hardware.choose_precision("auto", device),
        device=device,
        steps=warm + steps,
        minutes=None,
        started=time.monotonic(),
        schedule="constant",
        warmup=0,
        decay=0.0,
        final=1.0,
        clip=1.0,
        log_every=1,
        eval_every=10**9,
        save_every=10**9,
    )
    train(network, feed, optimizers, plan, TrainState(), Watch())
    (begin, before), (end, after) = noted[warm - 1], noted[-1]
    return (after - before) / (end - begin)


def run_transformers(file: str | None, steps: int, warm: int) -> float:
    """Real tokens a second of the Seq2SeqTrainer, pairs of like length together, bf16 on."""
    import torch
    import transformers

    pairs = pairs_of(file)
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        d_model=256,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_position_embeddings=512,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="swish",
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=END,
        scale_embedding=True,
    )
    network = transformers.MarianMTModel(config)
    rows = [{"input_ids": source, "labels": target} for source, target in pairs]
    seen: list[int] = []

    def collate(batch):
        seen.append(sum(len(row["input_ids"]) + len(row["labels"]) for row in batch))
        widest = max(len(row["input_ids"]) for row in batch)
        longest = max(len(row["labels"]) for row in batch)

        def padded(name, width, fill):
            return torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in batch])

        ids = padded("input_ids", widest, PAD)
        labels = padded("labels", longest, -100)
        return {
            "input_ids": ids,
            "attention_mask": (ids != PAD).long(),
            "labels": labels,
            # Label smoothing takes the labels away from the model, which shifts them otherwise.
            "decoder_input_ids": network.prepare_decoder_input_ids_from_labels(labels),
        }

    times: list[float] = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        transformers.Seq2SeqTrainer(
            network,
            transformers.Seq2SeqTrainingArguments(
                folder,
                per_device_train_batch_size=PER_STEP,
                max_steps=warm + steps,
                bf16=True,
                label_smoothing_factor=SMOOTHING,
                train_sampling_strategy="group_by_length",
                remove_unused_columns=False,
                use_cpu=not torch.cuda.is_available(),
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=rows,
            data_collator=collate,
            callbacks=[Watch()],
        ).train()
    return sum(seen[warm : warm + steps]) / (times[-1] - times[warm - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each run")
    parser.add_argument("--warm", type=int, default=4, help="steps before the clock starts")
    parser.add_argument("--file", help="a TSV of pairs; random ids unless given")
    parser.add_argument("--only", choices=("trivium", "transformers"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        run = run_trivium if options.only == "trivium" else run_transformers
        print(json.dumps(run(options.file, options.steps, options.warm)))
        return
    rates: dict[str, list[float]] = {"trivium": [], "transformers": []}
    for _ in range(options.pairs):
        for side, found in rates.items():
            found.append(_measure(side, options))
    ours, theirs = rates["trivium"], rates["transformers"]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(
        f"trivium {statistics.median(ours):8,.0f} tokens/s   transformers "
        f"{statistics.median(theirs):8,.0f} tokens/s   ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} pairs)",
        flush=True,
    )


def _measure(side: str, options: argparse.Namespace) -> float:
    command = [sys.executable, str(Path(__file__)), "--only", side]
    command += ["--steps", str(options.steps), "--warm", str(options.warm)]
    command += ["--file", options.file] if options.file else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
