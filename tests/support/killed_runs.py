"""Small runs of every objective, which are killed at random times and resumed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
from pathlib import Path

from run_settings import quiet, settings

from trivium.train.run_folder import RunFolder
from trivium.train.trainer import Interrupted
from trivium.workflows.training import pretrain

PRESETS = {
    "masked": "bert-tiny",
    "similar-words": "bert-tiny",
    "sentence-pairs": "bert-tiny",
    "replaced-token": "electra-tiny",
    "causal": "lstm-tiny",
    "prefix-lm": "llama-tiny",
    "fill-in-the-middle": "llama-tiny",
    "seq2seq-prefix-lm": "t5-v1.1-tiny",
    "bidirectional-lm": "elmo-tiny",
    "span-corruption": "t5-tiny",
    "denoising": "bart-tiny",
    "blank-filling": "glm-tiny",
    "permutation": "xlnet-tiny",
    "classification": "albert-tiny",
    "tagging": "roberta-tiny",
    "qa": "bert-tiny",
    "contrastive": "bert-tiny",
    "reranking": "bert-tiny",
    "tsdae": "bert-tiny",
    "reward": "gpt2-tiny",
    "preference": "gpt2-tiny",
    "kto": "gpt2-tiny",
    "policy": "gpt2-tiny",
    "translation": "transformer-tiny",
    "text-to-text": "t5-tiny",
    "summarization": "bart-tiny",
    "chat": "gpt2-tiny",
}
# A server imports torch once; the processes are copies of it.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "trivium.workflows.training"])


def write_examples(folder: Path, text: Path) -> dict[str, Path]:
    """The file that every objective reads."""
    words = sorted(set(text.read_text().replace(".", " ").split()))
    chance, records = random.Random(3), {kind: [] for kind in PRESETS}
    for number in range(24):
        some = chance.choices(words, k=6)
        sentence = " ".join(some)
        pair = {"source": sentence, "target": sentence[::-1]}
        records["classification"].append({"text": sentence, "label": "ab"[number % 2]})
        records["tagging"].append({"words": some, "tags": ["O", "B-X"] * 3})
        records["qa"].append({"question": f"{number}?", "context": sentence, "answers": some[3]})
        records["contrastive"].append({"question": some[3], "context": sentence})
        ranked = {"query": some[3], "document": sentence, "label": number % 2}
        records["reranking"].append(ranked)
        records["tsdae"].append({"text": sentence})
        for kind in ("translation", "text-to-text", "summarization"):
            records[kind].append(pair)
        answers = {"prompt": f"{number}?", "chosen": sentence, "rejected": some[0]}
        records["reward"].append(answers)
        records["preference"].append(answers)
        judged = {"prompt": f"{number}?", "completion": sentence, "label": number % 3 > 0}
        records["kto"].append(judged)
        records["policy"].append({"prompt": f"{number}?", "answer": some[0]})
        turns = {"user": f"{number}?", "assistant": sentence}
        messages = [{"role": role, "content": content} for role, content in turns.items()]
        records["chat"].append({"messages": messages})
    files = dict.fromkeys(PRESETS, text)
    for kind, rows in records.items():
        if rows:
            files[kind] = folder / f"{kind}.jsonl"
            files[kind].write_text("\n".join(map(json.dumps, rows)))
    return files


def train(kind: str, file: Path, out: Path, *, resume: bool) -> None:
    """Train a run, or go on with it."""
    with contextlib.suppress(Interrupted):
        if resume:
            pretrain("", out=out, resume=True, console=quiet())
            return
        tree = {
            "objective": {"kind": kind},
            "model": {"preset": PRESETS[kind]},
            "data": {"paths": [str(file)]},
        }
        changes = settings(steps=6, log_every=1, eval_every=4, save_every=2, eval_examples=3)
        if file.suffix == ".jsonl":  # labelled examples
            changes["train"] |= {"batch_tokens": None, "eval_tokens": None}
        else:
            changes["train"]["eval_examples"] = None
        pretrain(tree, out=out, changes=changes, console=quiet())


def train_as(rank: int, size: int, port: int, job: tuple[str, Path, Path], resume: bool) -> None:
    """Train as one of several processes, as `torchrun` would start it."""
    if size > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    train(*job, resume=resume)


def train_until(
    size: int, job: tuple[str, Path, Path], seconds: float | None, chance: random.Random
) -> bool:
    """Train in so many processes, of which one is killed after a while; whether that was so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    resume = RunFolder(job[2]).recipe.is_file()
    processes = [
        _CONTEXT.Process(target=train_as, args=(rank, size, port, job, resume))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    victim = chance.choice(processes)
    victim.join(seconds)
    was_killed = victim.is_alive()
    if was_killed:
        (victim.kill if chance.random() < 0.5 else victim.terminate)()
        if size > 1:  # the others cannot go on, and torchrun ends them
            for process in processes:
                process.kill()
    for process in processes:
        process.join()
        killed = (-signal.SIGKILL, -signal.SIGTERM) if was_killed else ()
        assert process.exitcode in (0, *killed), job
    return was_killed


def kill_and_resume(
    size: int, job: tuple[str, Path, Path], chance: random.Random, *, at_most: int
) -> int:
    """Train a run in processes that are killed at random times; how many times they were.

    Every kill gives the next start more time.
    """
    kills, seconds = 0, 0.5 * size
    while train_until(size, job, None if kills == at_most else seconds * chance.random(), chance):
        kills, seconds = kills + 1, seconds * 1.25
    return kills
