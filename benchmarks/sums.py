"""Sums of two numbers below 100: what a model learns from rewards, and from pairs of its answers.

A start that answers about half of the held-out sums is pretrained on the texts of the others. From
it `policy` learns from rewards of its own answers, with and without `beta`, and `preference` (DPO)
from pairs: to every sum four answers of the start are drawn, a right one is chosen and a wrong one
rejected. The table has the share of right answers to the 2,000 held-out sums, sampled at
temperature 1 and greedy, and seconds of processor time.

    python benchmarks/sums.py
    python benchmarks/sums.py --seeds 0 1 2 --policy-steps 200 --folder sums/
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import trivium
from trivium import LanguageModel
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams

Sum = tuple[str, str]
"""A prompt and its answer."""

HELD_OUT, HELD_OUT_PAIRS, SAMPLES = 2_000, 100, 4
START = (
    *("tokenizer.vocab_size=257", "data.separator=line", "data.packing=truncate"),
    *("data.length=12", "train.batch_tokens=3072", "schedule.kind=constant"),
)
POLICY = ("objective.max_new_tokens=4", "train.batch_examples=64", "train.eval_examples=100")
# Of all runs: what is learned is measured here, at their end.
ALL = ("train.eval_every=1000000", "train.precision=fp32")


def main() -> None:
    """A table for every seed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--start-steps", type=int, default=123, help="of pretraining")
    options.add_argument("--policy-steps", type=int, default=130, help="of 64 prompts, 8 answers")
    options.add_argument("--prompts", type=int, default=8_000, help="that are trained on")
    options.add_argument("--held-out", type=int, default=HELD_OUT)
    options.add_argument("--folder", type=Path, help="where runs are kept")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        print(f"\n| seed {seed} | sampled | greedy | seconds |\n|---|---|---|---|", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            kept = (arguments.folder or Path(folder)) / f"seed-{seed}"
            for name, sampled, greedy, seconds in table(seed, kept, arguments):
                print(f"| {name} | {sampled:.3f} | {greedy:.3f} | {seconds:.0f} |", flush=True)


def table(seed: int, folder: Path, options: argparse.Namespace) -> Iterable[tuple[Any, ...]]:
    """Rows of the table of a seed: name, both shares, seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = task()
    train, held_out = train[: options.prompts], held_out[: options.held_out]
    parts = {"train": train, "valid": held_out}
    texts = [write(folder / f"{n}.txt", [p + a for p, a in part]) for n, part in parts.items()]
    prompts = [
        write(folder / f"{n}.jsonl", [json.dumps({"prompt": p, "answer": a}) for p, a in part])
        for n, part in parts.items()
    ]

    def run(name: str, task: str, data: Sequence[Path], *changes: str) -> tuple[Any, ...]:
        started, out = time.process_time(), folder / name
        changes = (*ALL, *changes, f"seed={seed}")
        kept: dict[str, Any] = {"out": out, "changes": changes, "console": Console(quiet=True)}
        kept |= {"data": data[0], "validation": [str(data[1])], "overwrite": True}
        if task == "pretrain":
            trivium.pretrain("llama-tiny", suggest=False, **kept)
        else:
            trivium.finetune(task, model=folder / "start", **kept)
        seconds, lm = time.process_time() - started, trivium.load(out)
        shares = [share_right(lm, held_out, temperature) for temperature in (1.0, 0.0)]
        return name, *shares, seconds

    yield run("start", "pretrain", texts, *START, f"train.steps={options.start_steps}")
    steps = f"train.steps={options.policy_steps}"
    yield run("policy", "policy", prompts, *POLICY, steps)
    yield run("policy-beta-0", "policy", prompts, *POLICY, steps, "objective.beta=0")
    started = time.process_time()
    pairs = [json.dumps(one) for one in preferences(trivium.load(folder / "start"), train, seed)]
    parts = {"pairs": pairs[HELD_OUT_PAIRS:], "valid-pairs": pairs[:HELD_OUT_PAIRS]}
    files = [write(folder / f"{n}.jsonl", part) for n, part in parts.items()]
    drawn = time.process_time() - started
    name, sampled, greedy, seconds = run("preference", "preference", files)
    yield name, sampled, greedy, seconds + drawn


def task() -> tuple[list[Sum], list[Sum]]:
    """Sums to train on and held-out ones, of the 10,000 there are."""
    sums = [(f"{a}+{b}= ", str(a + b)) for a in range(100) for b in range(100)]
    random.Random(1234).shuffle(sums)
    return sums[HELD_OUT:], sums[:HELD_OUT]


def share_right(lm: LanguageModel, sums: Sequence[Sum], temperature: float) -> float:
    """Of the answers, ended by the model."""
    texts = answers(lm, [prompt for prompt, _ in sums], temperature, seed=7)
    return sum(text == answer for text, (_, answer) in zip(texts, sums)) / len(sums)


def preferences(lm: LanguageModel, sums: Sequence[Sum], seed: int) -> Iterable[dict[str, str]]:
    """Of sums with right and wrong answers among some that are drawn, one of each."""
    prompts = [prompt for prompt, _ in sums for _ in range(SAMPLES)]
    drawn = answers(lm, prompts, 1.0, seed=1_000_003 * (seed + 1))
    for number, (prompt, right) in enumerate(sums):
        texts = drawn[SAMPLES * number : SAMPLES * (number + 1)]
        wrong = next((text for text in texts if text and text != right), None)
        if right in texts and wrong is not None:
            yield {"prompt": prompt, "chosen": right, "rejected": wrong}


def answers(lm: LanguageModel, prompts: Sequence[str], temperature: float, seed: int) -> list[str]:
    """Answers that the model ended; of others ""."""
    params = SamplingParams(max_new_tokens=4, temperature=temperature)
    requests = [
        GenerationRequest(ids, params.replace(seed=seed + number))
        for number, ids in enumerate(lm.prompts(prompts))
    ]
    engine = lm.engine(slots=128, slot_length=16)
    for request in requests:
        engine.add(request)
    for _ in engine.run():
        pass
    return [one.text.strip() if one.finish_reason == "stop" else "" for one in requests]


def write(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
