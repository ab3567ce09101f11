"""Peak host memory of every process of a training run on CPUs.

Each run trains two steps and saves a checkpoint. Its figure is the largest resident memory of a
process (VmHWM in /proc/self/status, Linux), minus that of the same process after its imports.

    python benchmarks/host_memory.py --preset gpt2-medium
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from trivium.presets import presets
from trivium.workflows.training import pretrain

LENGTH, ROWS = 32, 2


def resident_peak() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) * 1024


def write_inputs(folder: Path, vocab_size: int) -> None:
    """Write a tokenizer with one word per id, for a model of its published size, and text."""
    vocabulary = {"<unk>": 0, "</s>": 1, "<pad>": 2}
    vocabulary |= {f"w{number}": number for number in range(3, vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "</s>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(3, vocab_size, (50, LENGTH), generator=generator)
    lines = (" ".join(f"w{number}" for number in row) for row in numbers.tolist())
    (folder / "text.txt").write_text("\n\n".join(lines))


def train(recipe: str, folder: Path, data: str) -> None:
    """Train in this process, and write its peak memory to a file in `folder`."""
    imported = resident_peak()
    changes = {
        "data": {"length": LENGTH},
        "model": {"dropout": 0.0},
        "parallel": {"data": data},
        "train": {
            "steps": 2,
            "batch_tokens": ROWS * LENGTH,
            "micro_batch_tokens": LENGTH,
            "eval_tokens": LENGTH,
            "precision": "fp32",
            "device": "cpu",
        },
    }
    if recipe in presets:
        changes["tokenizer"] = {"path": str(folder / "tokenizer.json")}
    pretrain(recipe, data=folder / "text.txt", out=folder / "run", changes=changes, overwrite=True)
    rank = os.environ.get("RANK", "0")
    (folder / f"peak-{rank}.json").write_text(json.dumps(resident_peak() - imported))


def measure(recipe: str, folder: Path, processes: int, data: str) -> list[float]:
    """Return the peak memory of every process of a run, in GB."""
    own = [__file__, "--recipe", recipe, "--folder", str(folder), "--data", data]
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(processes)]
    subprocess.run([*launcher, *own], check=True)
    files = (folder / f"peak-{rank}.json" for rank in range(processes))
    return [json.loads(file.read_text()) / 1e9 for file in files]


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak host memory of every process.")
    parser.add_argument("--preset", default="gpt2-medium")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--layouts", nargs="+", default=["fsdp"], choices=["ddp", "fsdp"])
    parser.add_argument("--recipe", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.recipe:
        train(options.recipe, options.folder, options.data)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, presets[options.preset].vocab_size)
        [alone] = measure(options.preset, folder, 1, "ddp")
        print(f"{options.preset}, one process: {alone:.2f} GB", flush=True)
        for layout in options.layouts:
            peaks = measure(options.preset, folder, options.processes, layout)
            each = ", ".join(f"{peak:.2f} GB ({peak / alone:.2f})" for peak in peaks)
            print(f"{options.processes} processes, {layout}: {each}", flush=True)


if __name__ == "__main__":
    main()
