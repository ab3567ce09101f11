"""Training tokens a second: Trivium against `transformers`' Trainer on the same work.

Both train the same shape (4 layers x 256, vocabulary 8192) on the same number of rows of 128
tokens in bfloat16, each in a process of its own, in turn. Printed are medians over the pairs and
the median of the pairs' ratios.

    python benchmarks/train_throughput.py --pairs 3 --steps 30
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

VOCAB, LENGTH, ROWS = 8192, 128, 32
MODELS = {"bert": "bert-mini", "gpt2": "gpt2-mini", "llama": "llama-mini"}


def run_trivium(model: str, steps: int, warm: int) -> float:
    """Tokens a second of the training loop on random tokens, without its first steps."""
    import numpy as np
    import torch

    from trivium.data import RowBatch
    from trivium.models import build
    from trivium.objectives import Causal, Masked
    from trivium.optim.optimizers import adamw, remember_peaks
    from trivium.presets import presets
    from trivium.train import hardware
    from trivium.train.checkpoint import TrainState
    from trivium.train.feed import RowFeed
    from trivium.train.loop import Evaluation, Plan, train

    hardware.keep_freed_memory()
    spec = presets[MODELS[model]].replace(vocab_size=VOCAB)
    masked = spec.family == "encoder-only"
    spec = spec.replace(heads=spec.heads[:1])
    objective = Masked.for_vocabulary(VOCAB, 4, range(5)) if masked else Causal()
    tokens = np.random.default_rng(0).integers(5, VOCAB, (256, LENGTH))

    class RandomRows:
        length = LENGTH

        def __len__(self) -> int:
            return len(tokens)

        def take(self, indices, *, with_documents: bool = False) -> RowBatch:
            return RowBatch(tokens[indices], np.full(len(indices), LENGTH))

    times: list[float] = []

    class Watch:
        def logged(self, record, progress) -> None:
            times.append(time.perf_counter())

        def evaluate(self, state) -> Evaluation:
            return Evaluation()

        def evaluated(self, record) -> None: ...

        def save(self, state) -> None: ...

    device = hardware.choose_device("auto")
    network = build(spec, device=device)
    optimizers = adamw(network, lr=1e-3)
    remember_peaks(optimizers)
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
    feed = RowFeed(objective, RandomRows(), seed=0, rows_per_step=ROWS, micro_batch=ROWS)
    train(network, feed, optimizers, plan, TrainState(), Watch())
    if device.type == "cuda":
        torch.cuda.synchronize()
    return steps * ROWS * LENGTH / (times[-1] - times[-1 - steps])


def run_transformers(model: str, steps: int, warm: int) -> float:
    """Tokens a second of `transformers`' Trainer, bf16 on, on random tokens."""
    import torch
    import transformers

    shape = {"vocab_size": VOCAB, "hidden_size": 256}
    match model:
        case "bert":
            network = transformers.BertForMaskedLM(
                transformers.BertConfig(
                    **shape,
                    num_hidden_layers=4,
                    num_attention_heads=4,
                    intermediate_size=1024,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                )
            )
        case "gpt2":
            network = transformers.GPT2LMHeadModel(
                transformers.GPT2Config(
                    vocab_size=VOCAB,
                    n_embd=256,
                    n_layer=4,
                    n_head=4,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                    attn_pdrop=0.0,
                    bos_token_id=0,
                    eos_token_id=0,
                )
            )
        case "llama":
            network = transformers.LlamaForCausalLM(
                transformers.LlamaConfig(
                    **shape,
                    num_hidden_layers=4,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    intermediate_size=688,
                )
            )
    ids = torch.randint(5, VOCAB, (256, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    if model == "bert":
        labels[torch.rand(labels.shape) > 0.15] = -100
    rows = [{"input_ids": i, "labels": t} for i, t in zip(ids, labels, strict=True)]
    times: list[float] = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, arguments, state, control, **rest) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        transformers.Trainer(
            network,
            transformers.TrainingArguments(
                folder,
                per_device_train_batch_size=ROWS,
                max_steps=warm + steps,
                bf16=True,
                use_cpu=not torch.cuda.is_available(),
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=rows,
            callbacks=[Watch()],
        ).train()
    return steps * ROWS * LENGTH / (times[-1] - times[-1 - steps])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each run")
    parser.add_argument("--warm", type=int, default=5, help="steps before the clock starts")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--only", choices=("trivium", "transformers"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        run = run_trivium if options.only == "trivium" else run_transformers
        print(json.dumps(run(options.models[0], options.steps, options.warm)))
        return
    for model in options.models:
        rates: dict[str, list[float]] = {"trivium": [], "transformers": []}
        for _ in range(options.pairs):
            for side, found in rates.items():
                found.append(_measure(side, model, options))
        ours, theirs = rates["trivium"], rates["transformers"]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        print(
            f"{model:6} trivium {statistics.median(ours):8,.0f} tokens/s   transformers "
            f"{statistics.median(theirs):8,.0f} tokens/s   ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} pairs)",
            flush=True,
        )


def _measure(side: str, model: str, options: argparse.Namespace) -> float:
    command = [sys.executable, str(Path(__file__)), "--only", side, "--models", model]
    command += ["--steps", str(options.steps), "--warm", str(options.warm)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
