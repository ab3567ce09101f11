"""Milliseconds per forward pass: onnxruntime with an exported model against PyTorch.

Random weights of published shapes. The encoder reads whole batches; the decoder makes one more
token of a text that is in its cache. Both sides use the same number of threads (OMP_NUM_THREADS).

    OMP_NUM_THREADS=1 python benchmarks/onnx_files.py
    OMP_NUM_THREADS=1 python benchmarks/onnx_files.py --models gpt2 --types f32 --rounds 30
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from side_by_side import machine

from trivium import presets
from trivium.language_model import LanguageModel
from trivium.models import build

SHAPES = {"distilbert": "distilbert-base", "gpt2": "gpt2"}
SIZES = {"distilbert": [(1, 16), (1, 128), (8, 128)], "gpt2": [(1, 16), (1, 256)]}
FILES = {"f32": "model", "int8": "model_quantized"}


def median_ms(compute: Callable[[], Any], rounds: int) -> float:
    """The median time of a call in milliseconds, after two calls to warm up."""
    times = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        compute()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def torch_call(lm: LanguageModel, rows: int, length: int) -> Callable[[], Any]:
    """The forward pass in PyTorch: of a batch, or of one token after `length` cached ones."""
    ids = torch.randint(5, lm.spec.vocab_size, (rows, length))
    if lm.spec.family == "encoder-only":
        return lambda: lm.module.logits(lm.module(ids))
    cache = lm.module.new_cache(rows, length + 2)
    lm.module(ids, cache=cache)
    slots, lengths = torch.arange(rows), torch.full((rows,), length)

    def step() -> Any:
        cache.crop(slots, lengths)
        return lm.module.logits(lm.module(ids[:, :1], cache=cache))

    return step


def onnx_call(file: Path, rows: int, length: int, vocab_size: int) -> Callable[[], Any]:
    """The same in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options)
    shapes: Mapping[str, Any] = {each.name: each.shape for each in session.get_inputs()}
    rng, inputs = np.random.default_rng(0), {}
    cached = "position_ids" in shapes
    for name, shape in shapes.items():
        if name.startswith("past"):
            inputs[name] = rng.normal(size=(rows, shape[1], length, shape[3])).astype("float32")
        elif name == "input_ids":
            inputs[name] = rng.integers(5, vocab_size, (rows, 1 if cached else length))
        elif name == "position_ids":
            inputs[name] = np.full((rows, 1), length)
        else:
            inputs[name] = np.ones((rows, length + cached), dtype="int64")
    return lambda: session.run(None, inputs)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--types", nargs="+", choices=FILES, default=[*FILES])
    parser.add_argument("--rounds", type=int, default=15)
    job = parser.parse_args()
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}\n")
    print(f"| model | rows | tokens | PyTorch | {' | '.join(job.types)} |")
    print("|---|--:|--:|--:|" + "--:|" * len(job.types))
    for model in job.models:
        spec = presets[SHAPES[model]]
        lm = LanguageModel(spec, build(spec, seed=0))
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for kind in job.types:
                with torch.inference_mode(False):
                    lm.save_onnx(Path(folder) / kind, weight_type=kind)
                files[kind] = Path(folder) / kind / "onnx" / f"{FILES[kind]}.onnx"
            sizes = ", ".join(f"{k} {f.stat().st_size / 1e6:.0f} MB" for k, f in files.items())
            for rows, length in SIZES[model]:
                ours = median_ms(torch_call(lm, rows, length), job.rounds)
                theirs = [
                    median_ms(onnx_call(file, rows, length, spec.vocab_size), job.rounds)
                    for file in files.values()
                ]
                cells = [f"{x:.1f} ms" for x in (ours, *theirs)]
                print(f"| {model} | {rows} | {length} | {' | '.join(cells)} |", flush=True)
            print(f"{model}: {sizes}", flush=True)


if __name__ == "__main__":
    main()
