"""Generated tokens per second of one text: Trivium beside llama.cpp on the same weights.

Random weights of GPT-2 124M and of LLaMA with 7 million parameters are written as a model of
Trivium and exported as GGUF files. Both sides continue the same prompt of 16 tokens greedily by
`--new-tokens` tokens; reading the prompt is not counted. llama.cpp (`xllamacpp`) is called through
its own server, and the rate is the one that the server reports.

    OMP_NUM_THREADS=1 python benchmarks/llama_cpp.py
    OMP_NUM_THREADS=2 python benchmarks/llama_cpp.py --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import random
import string
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from generate import endless
from side_by_side import Figures, compare, is_child, machine, parser

MODELS = {"gpt2 124M": ("gpt2", 50_257), "llama 7M": ("llama-mini", 8_192)}
TYPES = ("f32", "q8_0", "q4_0")


def make_models(preset: str, vocab_size: int, folder: Path) -> None:
    """Write a model with random weights to `folder`/trivium and its GGUF files beside it."""
    from trivium.interop.gguf_file import write_gguf
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets
    from trivium.text import Tokenizer

    rng = random.Random(0)  # words with enough different merges
    words = ["".join(rng.choices(string.ascii_letters, k=8)) for _ in range(vocab_size)]
    tokenizer = Tokenizer.train("byte-bpe", texts=words, vocab_size=vocab_size, min_frequency=1)
    spec = presets[preset].replace(vocab_size=tokenizer.vocab_size)
    lm = LanguageModel(spec, build(spec, seed=0), tokenizer)
    lm.save(folder / "trivium")
    for kind in TYPES:
        write_gguf(
            folder / f"{kind}.gguf", lm.module, tokenizer, lm.settings,
            weight_type=kind, max_length=spec.max_length or 512,
        )  # fmt: skip


def run_trivium(job: argparse.Namespace, *, quantize: Any = None) -> Figures:
    """The engine with one slot."""
    from trivium.inference.engine import Engine
    from trivium.inference.request import GenerationRequest
    from trivium.inference.sampling_params import SamplingParams
    from trivium.model_loading import load

    folder = Path(job.folder, "trivium")
    module = load(folder, device="cpu", dtype="float32", quantize=quantize).module
    params = SamplingParams(temperature=0.0, max_new_tokens=job.new_tokens)
    engine = Engine(endless(module, translates=False), slots=1, slot_length=512)
    rates = []
    for _ in range(3):
        engine.add(GenerationRequest(list(range(10, 26)), params))
        engine.step()  # reads the prompt and generates the first token
        started = time.perf_counter()
        for _ in engine.run():
            pass
        rates.append((job.new_tokens - 1) / (time.perf_counter() - started))
    return {"tokens/s": max(rates)}


def run_llama_cpp(job: argparse.Namespace, *, kind: str) -> Figures:
    """llama.cpp's server with one slot."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(Path(job.folder, f"{kind}.gguf"))
    params.n_ctx, params.n_parallel, params.port, params.verbosity = 512, 1, 0, 0
    params.cpuparams.n_threads = job.threads
    params.cpuparams_batch.n_threads = job.threads
    server = xllamacpp.Server(params)
    body = {
        "prompt": list(range(10, 26)), "n_predict": job.new_tokens, "temperature": 0,
        "cache_prompt": False, "ignore_eos": True,
    }  # fmt: skip
    rates = []
    for _ in range(3):
        request = urllib.request.Request(
            f"{server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            rates.append(json.load(answer)["timings"]["predicted_per_second"])
    return {"tokens/s": max(rates)}


SIDES = {
    "trivium float32": run_trivium,
    "trivium int8": partial(run_trivium, quantize="int8"),
    **{f"llama.cpp {kind}": partial(run_llama_cpp, kind=kind) for kind in TYPES},
}


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    options.add_argument("--new-tokens", type=int, default=128)
    arguments = options.parse_args()
    if is_child(arguments, SIDES):
        return
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        jobs = {}
        for name in arguments.models:
            preset, vocab_size = MODELS[name]
            make_models(preset, vocab_size, Path(folder, preset))
            jobs[name] = {
                "folder": str(Path(folder, preset)), "new_tokens": arguments.new_tokens,
                "threads": int(os.environ.get("OMP_NUM_THREADS", "2")),
            }  # fmt: skip
        compare(arguments, SIDES, jobs)


if __name__ == "__main__":
    main()
