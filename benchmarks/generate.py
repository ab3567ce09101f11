"""Writing text: Trivium's engine against `transformers.generate` and CTranslate2, equal weights.

Random weights of a published shape are written once as a Hugging Face folder that every side loads.
Each side is a process of its own; they write in turn, greedily and without an early end, prompts
of equal or mixed lengths. Printed are tokens a second (medians over the rounds, prompts read
included), the ratio to the better of `transformers`' two ways (its dynamic cache; its static cache,
compiled), and how much of the memory's bandwidth our decoding steps reach: the bytes of all weights
that a step reads, against a plain sum over as many bytes with all threads. Our own steps are
measured compiled and not; what compiling takes is not in the rounds, neither ours nor theirs.
In float32 every side must write the same tokens.

    python benchmarks/generate.py
    python benchmarks/generate.py --models gpt2 --dtypes bf16 --batches 1 --rounds 7
    python benchmarks/generate.py --models marian t5 --markdown table.md
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

DECODERS, TRANSLATORS = ("gpt2", "llama"), ("t5", "marian")
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
MIXED = (10, 24, 45, 70, 98, 130, 165, 200)  # tokens of prompts; of sources a fifth
ALONE = 32
BEAMS = 4
PEERS = ("transformers", "transformers, static cache, compiled")
COMPILED = ("trivium, compiled", "trivium int8, compiled")
SIDES = ("trivium", "trivium int8", *COMPILED, *PEERS, "ctranslate2", "ctranslate2 int8")

Ids = list[list[int]]


def make_folder(model: str, folder: Path) -> None:
    """Random weights of a shape, as `transformers` and we read them."""
    from trivium.language_model import LanguageModel
    from trivium.models import build
    from trivium.presets import presets

    match model:
        case "gpt2":
            spec = presets["gpt2"]
        case "llama":  # SmolLM 135M
            small = presets["llama-tiny"]
            assert small.decoder is not None
            attention, forward = small.decoder.attention, small.decoder.feed_forward
            assert not isinstance(attention, tuple)
            block = small.decoder.replace(
                num_layers=30,
                attention=attention.replace(num_heads=9, num_kv_heads=3, head_dim=64),
                feed_forward=forward.replace(d_ff=1536),
            )
            heads = (small.heads[0].replace(tied=True),)
            spec = small.replace(vocab_size=49_152, d_model=576, decoder=block, heads=heads)
        case "t5":
            spec = presets["t5-small"]
        case _:
            spec = presets["marian-opus-mt"]
    LanguageModel(spec, build(spec, seed=0)).save_hf(folder)


def prompts_for(model: str, batch: int, vocab_size: int) -> Ids:
    """Ids of prompts, or of sources: one of usual length, or several of mixed lengths."""
    import numpy as np

    random = np.random.default_rng(1)
    lengths = [ALONE] if batch == 1 else [MIXED[i % len(MIXED)] for i in range(batch)]
    if model in TRANSLATORS:
        lengths = [max(4, length // 5) for length in lengths]
    return [random.integers(10, vocab_size - 1, length).tolist() for length in lengths]


Side = Callable[[], tuple[Ids, float]]
"""Writes once: the ids, and the seconds until the prompts were read, 0.0 where nobody knows."""


def trivium_side(job: argparse.Namespace) -> Side:
    """Our engine, or our beam search."""
    import torch

    from trivium.inference.beam import Beams, decode_all
    from trivium.inference.engine import Engine
    from trivium.inference.request import Request
    from trivium.inference.sampling import Sampling
    from trivium.language_model import load

    dtype = getattr(torch, DTYPES[job.dtype])
    quantize = "int8" if "int8" in job.side else None
    compiled = job.side in COMPILED
    module = load(
        job.folder, device="cpu", dtype=dtype, quantize=quantize, packed=True, compiled=compiled
    ).module
    prompts = prompts_for(job.model, job.batch, module.spec.vocab_size)
    start = (0,) if job.model in TRANSLATORS else ()
    greedy = Sampling(temperature=0.0)

    def search() -> tuple[Ids, float]:
        found = decode_all(
            module,
            prompts,
            beams=Beams(num_beams=job.beams),
            max_new_tokens=job.new_tokens,
            decoder_start=start,
        )
        return [list(best[0].ids) for best in found], 0.0

    def write() -> tuple[Ids, float]:
        began = time.perf_counter()
        engine = Engine(module, rows=job.batch, decoder_start=start)
        texts = [
            engine.add(Request(prompt=prompt, max_new_tokens=job.new_tokens, sampling=greedy))
            for prompt in prompts
        ]
        engine.step()
        read = time.perf_counter() - began
        for _ in engine.run():
            pass
        return [text.ids for text in texts], read

    return search if job.beams > 1 else write


def transformers_side(job: argparse.Namespace) -> Side:
    """`generate`, prompts padded on the left, sources on the right."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    both = job.model in TRANSLATORS
    kind = transformers.AutoModelForSeq2SeqLM if both else transformers.AutoModelForCausalLM
    network = kind.from_pretrained(job.folder, dtype=getattr(torch, DTYPES[job.dtype])).eval()
    prompts = prompts_for(job.model, job.batch, network.config.vocab_size)
    longest = max(map(len, prompts))

    def padded(row: list[int], fill: int) -> list[int]:
        rest = [fill] * (longest - len(row))
        return [*row, *rest] if both else [*rest, *row]

    ids = torch.tensor([padded(row, 0) for row in prompts])
    mask = torch.tensor([padded([1] * len(row), 0) for row in prompts])
    settings = network.generation_config
    settings.eos_token_id = settings.forced_eos_token_id = settings.bad_words_ids = None
    settings.pad_token_id, settings.max_length = 0, None
    settings.decoder_start_token_id = 0 if both else None
    options: dict[str, Any] = {"num_beams": job.beams, "do_sample": False}
    if job.side == PEERS[1]:
        compiling = transformers.CompileConfig(mode="default", fullgraph=False)
        compiling._compile_all_devices = True
        options |= {"cache_implementation": "static", "compile_config": compiling}

    def write() -> tuple[Ids, float]:
        found = network.generate(ids, attention_mask=mask, max_new_tokens=job.new_tokens, **options)
        return found[:, 1 if both else longest :].tolist(), 0.0

    return write


def ctranslate2_side(job: argparse.Namespace) -> Side:
    """CTranslate2, converted from the same folder; it names tokens, so each id gets a name."""
    import ctranslate2
    import transformers
    from ctranslate2.converters import TransformersConverter
    from tokenizers import Tokenizer, models

    both = job.model in TRANSLATORS
    config = transformers.AutoConfig.from_pretrained(job.folder)
    with tempfile.TemporaryDirectory() as place:
        whole, converted = Path(place, "whole"), Path(place, "converted")
        whole.mkdir()
        for file in Path(job.folder).iterdir():
            (whole / file.name).symlink_to(file)
        last = config.vocab_size - 1  # Marian's converter takes it away.
        names = {"</s>": 0} | {f"t{i}": i for i in range(1, last)} | {"<pad>": last}
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(names, unk_token="</s>")),
            eos_token="</s>",
            bos_token="</s>",
            unk_token="</s>",
            pad_token="<pad>",
        ).save_pretrained(whole)
        # With the name of a class of theirs it would look for that class's own files.
        compute = "int8" if job.side.endswith("int8") else DTYPES[job.dtype]
        TransformersConverter(str(whole)).convert(str(converted), quantization=compute)
        kind = ctranslate2.Translator if both else ctranslate2.Generator
        network = kind(
            str(converted), device="cpu", compute_type=compute, intra_threads=job.threads
        )
    named = {i: name for name, i in names.items()}
    prompts = prompts_for(job.model, job.batch, config.vocab_size)
    texts = [[named[i] for i in row] for row in prompts]

    def write() -> tuple[Ids, float]:
        found = network.generate_batch(
            texts,
            max_length=job.new_tokens,
            min_length=job.new_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [list(one.sequences_ids[0]) for one in found], 0.0

    def translate() -> tuple[Ids, float]:
        found = network.translate_batch(
            texts,
            beam_size=job.beams,
            max_decoding_length=job.new_tokens,
            min_decoding_length=job.new_tokens,
        )
        return [[names[name] for name in one.hypotheses[0]] for one in found], 0.0

    return translate if both else write


def serve(job: argparse.Namespace) -> None:
    """Be one side: load, then write once for every line that comes."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    # Whatever libraries print would stand between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch

    torch.set_num_threads(job.threads)
    makers = {"trivium": trivium_side, "transformers": transformers_side}
    make = makers.get(job.side.split(",")[0].split()[0], ctranslate2_side)
    with torch.inference_mode():
        write = make(job)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            ids, read = write()
            seconds = time.perf_counter() - began
            found = {"seconds": seconds, "read": read, "ids": ids}
            print(json.dumps(found), file=answers, flush=True)


class Process:
    """A side that runs apart from us and waits to be asked."""

    def __init__(self, side: str, job: argparse.Namespace) -> None:
        command = [sys.executable, str(Path(__file__)), "--serve", side, "--folder", job.folder]
        for name in ("model", "dtype", "batch", "beams", "new_tokens", "threads"):
            command += [f"--{name.replace('_', '-')}", str(getattr(job, name))]
        environment = os.environ | {"OMP_NUM_THREADS": str(job.threads), "HF_HUB_OFFLINE": "1"}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )

    def answer(self) -> dict[str, Any]:
        """What it says next. Raises RuntimeError with its last words where it has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        words = [line for line in self.errors.read().splitlines() if line.strip()]
        raise RuntimeError(words[-1][:200] if words else "it ended without a word")

    def ask(self) -> dict[str, Any]:
        """Let it write once."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("again\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.answer()

    def end(self) -> None:
        """Let it go."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


def plain_read(size: int, threads: int) -> float:
    """Bytes a second of a sum over `size` bytes."""
    import torch

    torch.set_num_threads(threads)
    numbers = torch.ones(size // 8, dtype=torch.int64)
    times = []
    for _ in range(9):
        began = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - began)
    return size / statistics.median(times)


def weight_bytes(model: str, folder: str, side: str, dtype: str) -> int:
    """Bytes that a decoding step reads: the decoder's matrices and that of the vocabulary."""
    from safetensors import safe_open

    # What the encoder says, and keys and values of it, are computed once a text.
    once = ("model.encoder.", "encoder.", "transformer.wpe.")
    across = (
        "encoder_attn.k_proj",
        "encoder_attn.v_proj",
        "EncDecAttention.k",
        "EncDecAttention.v",
    )
    with safe_open(Path(folder, "model.safetensors"), framework="pt") as opened:
        numbers = sum(
            math.prod(opened.get_slice(name).get_shape())
            for name in opened.keys()  # noqa: SIM118
            if not name.startswith(once) and not any(part in name for part in across)
        )
    return numbers * (1 if "int8" in side else 4 if dtype == "fp32" else 2)


def run_cell(job: argparse.Namespace, sides: list[str]) -> dict[str, Any]:
    """All sides in turn on one kind of work: seconds of every round, tokens, what failed."""
    found: dict[str, Any] = {"seconds": {}, "read": {}, "ids": {}, "failed": {}, "first": {}}
    processes: dict[str, Process] = {}
    for side in sides:
        process = Process(side, job)
        try:
            process.answer()
            # The first time compiles; the second may again, for other lengths.
            found["first"][side] = process.ask()["seconds"]
            process.ask()
            processes[side] = process
        except RuntimeError as error:
            found["failed"][side] = str(error)
            process.end()
    for _ in range(job.rounds):
        for side, process in processes.items():
            answer = process.ask()
            found["seconds"].setdefault(side, []).append(answer["seconds"])
            found["read"].setdefault(side, []).append(answer["read"])
            found["ids"][side] = answer["ids"]
    for process in processes.values():
        process.end()
    return found


def report(job: argparse.Namespace, found: dict[str, Any]) -> list[str]:
    """Print what was found; rows of a Markdown table."""
    tokens = job.batch * job.new_tokens
    speed = {side: tokens / statistics.median(times) for side, times in found["seconds"].items()}
    best = max((speed[side] for side in PEERS if side in speed), default=None)
    reference = found["ids"].get(PEERS[0]) or next(iter(found["ids"].values()), [])
    kind = f", {job.beams} beams" if job.beams > 1 else ""
    work = f"{job.model} {job.dtype}, batch {job.batch}{kind}"
    rows = []
    print(f"{work}: {job.new_tokens} new tokens, {job.rounds} rounds", flush=True)
    for side, rate in speed.items():
        ratio = f"{rate / best:.2f}" if best and side not in PEERS else ""
        share = ""
        if side.startswith("trivium") and job.beams == 1:
            size = weight_bytes(job.model, job.folder, side, job.dtype)
            times = zip(found["seconds"][side], found["read"][side], strict=True)
            step = statistics.median(a - b for a, b in times) / (job.new_tokens - 1)
            share = f"{size / step / plain_read(size, job.threads):.0%}"
        same = sum(
            a == b
            for ours, theirs in zip(found["ids"][side], reference, strict=True)
            for a, b in zip(ours, theirs, strict=False)
        )
        texts = f"{same / tokens:.0%}"
        if job.dtype == "fp32" and side in ("trivium", COMPILED[0], *PEERS) and same < tokens:
            print(f"  {side}: writes other tokens than {PEERS[0]}, though it has the same weights.")
        first = found["first"][side]
        print(
            f"  {side:38} {rate:8.1f} tokens/s"
            f"{f'   ratio {ratio}' if ratio else '':14}"
            f"{f'   {share} of a plain read' if share else '':26}"
            f"   tokens equal {texts:>4}   first time {first:.1f} s",
            flush=True,
        )
        rows.append(f"| {work} | {side} | {rate:.1f} | {ratio} | {share} | {texts} |")
    for side, reason in found["failed"].items():
        print(f"  {side:38} not measured: {reason}", flush=True)
        rows.append(f"| {work} | {side} | not measured | | | |")
    return rows


def sides_for(job: argparse.Namespace, wanted: list[str]) -> list[str]:
    """Those sides that can do this work."""
    possible = [side for side in SIDES if side in wanted]
    if job.beams > 1:  # there `transformers` does not compile
        possible = [side for side in possible if side != PEERS[1]]
    if job.dtype == "bf16":
        possible = [side for side in possible if side != "ctranslate2"]
    return possible


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    everything = [*DECODERS, *TRANSLATORS]
    parser.add_argument("--models", nargs="+", choices=everything, default=everything)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each side")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--markdown", type=Path, help="write a table too")
    parser.add_argument("--serve", dest="side", choices=SIDES, help=argparse.SUPPRESS)
    for name, kind in (("folder", str), ("model", str), ("dtype", str), ("batch", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--beams", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve(options)
        return
    table = [
        "| work | side | tokens/s | to `transformers`' better | of a plain read | tokens equal |",
        "|---|---|---|---|---|---|",
    ]
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            make_folder(model, Path(folder))
            for dtype in options.dtypes:
                for batch in options.batches:
                    for beams in (1, BEAMS) if model in TRANSLATORS else (1,):
                        job = argparse.Namespace(**vars(options))
                        job.folder, job.model, job.dtype = folder, model, dtype
                        job.batch, job.beams = batch, beams
                        table += report(job, run_cell(job, sides_for(job, options.sides)))
    if options.markdown:
        options.markdown.write_text("\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
