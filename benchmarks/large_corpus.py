"""A corpus larger than memory: prepared undisturbed, and killed twice and resumed; equal bytes.

The corpus is the bundled English text again and again, with every tenth word changed each time.
Peak memory is that of the processes that prepare it, memory maps included.

    python benchmarks/large_corpus.py --gigabytes 5
    python benchmarks/large_corpus.py --gigabytes 0.3 --folder big/ --keep
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from side_by_side import machine

from trivium.data import read_documents
from trivium.data.encode_tasks import SHARD_BYTES
from trivium.data.prepare import partial_folder
from trivium.data.samples import sample_path
from trivium.files import sha256, write_file
from trivium.text import Tokenizer

FILE_BYTES = 100_000_000
KILLS = (0.3, 0.7)  # when this share of the shards is finished
LIMIT = 2e9


def make_corpus(folder: Path, gigabytes: float) -> None:
    """Files of 100 MB of documents, no two of which are equal."""
    texts = [document.text for document in read_documents(sample_path("en"))]
    parts = [re.split(r"(\s+)", text) for text in texts]  # words and spaces in turn
    words = np.array(sorted({word for one in parts for word in one[::2]}), dtype=object)
    rng = np.random.default_rng(0)
    for number in range(max(1, round(gigabytes * 1e9 / FILE_BYTES))):
        with (folder / f"{number:05}.txt").open("wb") as file:
            while file.tell() < FILE_BYTES:
                part = parts[rng.integers(len(parts))].copy()
                count = (len(part) + 1) // 2
                places = rng.integers(0, count, size=1 + count // 10) * 2
                changes = words[rng.integers(0, len(words), size=len(places))]
                for place, word in zip(places.tolist(), changes):
                    part[place] = word
                file.write("".join(part).encode() + b"\n\n")


def prepare(corpus: Path, tokenizer: Path, out: Path, kills: tuple[float, ...] = ()) -> int:
    """Prepare a corpus in a process of its own, killed at these shares: the peak memory."""
    command = [sys.executable, "-m", "trivium", "prepare", str(corpus), "--out", str(out)]
    command += ["--tokenizer", str(tokenizer)]
    num_shards = len(list(corpus.iterdir())) * -(-FILE_BYTES // SHARD_BYTES)
    peak, began = 0, time.monotonic()
    for kill in (*kills, None):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while kill is not None and process.poll() is None:
            if len(list(partial_folder(out).glob("shard-*/shard.json"))) >= kill * num_shards:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.1)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != (0 if kill is None else -signal.SIGKILL):
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}.")
        peak = max(peak, usage.ru_maxrss * 1024)
    print(f"{time.monotonic() - began:.0f} s, {len(kills)} kills", file=sys.stderr, flush=True)
    return peak


def digest(folder: Path) -> str:
    """One hash of the names and bytes of all files."""
    files = "".join(f"{path.name} {sha256(path)}\n" for path in sorted(folder.iterdir()))
    return hashlib.sha256(files.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep the corpus and the shards")
    job = parser.parse_args()
    folder = job.folder or Path(tempfile.mkdtemp(prefix="large_corpus"))
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    try:
        if not any(corpus.iterdir()):
            make_corpus(corpus, job.gigabytes)
        size = sum(path.stat().st_size for path in corpus.iterdir())
        tokenizer = folder / "tokenizer.json"
        if not tokenizer.is_file():
            texts = (document.text for document in read_documents(sample_path("en")))
            write_file(
                tokenizer, Tokenizer.train("byte-bpe", texts=texts, vocab_size=8192).to_json()
            )
        print("| preparing | GB | peak memory, MB | seconds | sha256 of all shards |")
        print("|---|---|---|---|---|")
        digests, peaks = [], []
        for name, kills in (("undisturbed", ()), ("killed twice and resumed", KILLS)):
            began = time.monotonic()
            peaks.append(prepare(corpus, tokenizer, folder / "shards", kills))
            digests.append(digest(folder / "shards"))
            seconds = time.monotonic() - began
            row = (
                name,
                f"{size / 1e9:.2f}",
                f"{peaks[-1] / 1e6:.0f}",
                f"{seconds:.0f}",
                digests[-1],
            )
            print(f"| {' | '.join(row)} |", flush=True)
            shutil.rmtree(folder / "shards")
        equal, small = len(set(digests)) == 1, max(peaks) < LIMIT
        print(f"\nEqual: {equal}. Below {LIMIT / 1e9:.0f} GB: {small}. {machine()}")
        raise SystemExit(not (equal and small))
    finally:
        if not job.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
