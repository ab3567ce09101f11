"""The time of a checkpoint of several processes on CPUs, and how long training waits for it.

Each process has its FSDP2 shards of a model with new weights and of AdamW's state in float32. The
time of a save ends when the checkpoint has its final name. The stall is the time for which the call
of `Checkpoints.save` takes the main thread. Both are those of the slowest process. The first save
is not counted.

    python benchmarks/checkpoint_time.py --preset gpt2
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

import torch

from trivium.models import build
from trivium.presets import presets
from trivium.train.checkpoint import Checkpoints
from trivium.train.distributed import join_processes, parallelize_step
from trivium.train.train_config import ParallelConfig
from trivium.train.trainer import TrainState, TrainStep


def save(preset: str, folder: Path, data: str, saves: int) -> None:
    """Save checkpoints in this process, and write their times and sizes to a file in `folder`."""
    device, config = torch.device("cpu"), ParallelConfig.model_validate({"data": data})
    parallel = join_processes(config, device)
    torch.manual_seed(0)
    model = build(presets[preset])
    parallelize_step(TrainStep(model), parallel, config, precision=torch.float32, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    checkpoints = Checkpoints(folder / "checkpoints", parallel)
    times = []
    for step in range(1, saves + 2):
        parallel.barrier()
        start = time.perf_counter()
        checkpoints.save(model, [optimizer], TrainState(step))
        stall = time.perf_counter() - start
        checkpoints.wait()
        parallel.barrier()
        times.append(parallel.all_reduce_max(stall, time.perf_counter() - start))
    files = [*checkpoints.path(TrainState(saves + 1)).iterdir()]
    if parallel.is_main:
        size = sum(file.stat().st_size for file in files)
        (folder / "times.json").write_text(json.dumps({"times": times[1:], "bytes": size}))


def main() -> None:
    parser = argparse.ArgumentParser(description="The time of a checkpoint, and its stall.")
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data", default="fsdp", choices=["ddp", "fsdp"])
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        save(options.preset, options.folder, options.data, options.saves)
        return
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(options.processes), __file__, "--folder", name]
        for key in ("preset", "data", "saves"):
            command += [f"--{key}", str(getattr(options, key))]
        subprocess.run(command, check=True)
        measured = json.loads((Path(name) / "times.json").read_text())
    stalls, totals = zip(*measured["times"], strict=True)
    print(
        f"{options.preset}, {options.processes} processes, {options.data}, "
        f"{measured['bytes'] / 1e9:.2f} GB: save {format_seconds(totals)}, "
        f"stall {format_seconds(stalls)}"
    )


def format_seconds(values: tuple[float, ...]) -> str:
    """Return the median and the range of some durations."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
