"""What one GPU should tell within minutes: training, decoding and serving beside `transformers`.

The parts run one after the other, the most important first, each in a process and with a time limit
of its own. A part writes its results to OUT/PART.json as soon as it has them, so that nothing is
lost if it or the machine is stopped. Parts that the minutes do not reach are listed at the end.
Models have random weights and read random tokens: no network and no data are needed.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --minutes 30 --out results
    python benchmarks/gpu.py --list
    python benchmarks/gpu.py --parts train-gpt2,decode,decode-transformers
    python benchmarks/gpu.py --tiny --parts ceilings,loss    # tiny models, to try the program
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from side_by_side import Figures

from trivium.files import write_json

HERE = Path(__file__).parent


@dataclass
class Report:
    """The results of one part, which are written whenever one is added.

    Args:
        path: the JSON file.
        device: "cuda", or "cpu" for tiny models.
    """

    path: Path
    device: str
    status: str = "running"
    results: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def tiny(self) -> bool:
        """Whether models are tiny, to try the program without a GPU."""
        return self.device == "cpu"

    def add(self, what: str, **figures: Any) -> None:
        """Add a result and write the file."""
        self.results.append({"what": what, **figures})
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_json(self.path, {"status": self.status, "results": self.results})


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: what it runs, and its time limit in seconds."""

    run: Callable[[Report], None]
    limit: float


def synchronize(device: str) -> None:
    """Wait until the device has done its work."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def seconds_per_call(function: Callable[[], Any], device: str, *, calls: int, warmup: int) -> float:
    """Return the mean seconds of a call, after some calls that are not counted."""
    for _ in range(warmup):
        function()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize(device)
    return (time.perf_counter() - started) / calls


def peak_gb(device: str) -> Figures:
    """Return the peak of allocated GPU memory so far."""
    import torch

    return {"peak GB": torch.cuda.max_memory_allocated() / 1e9} if device == "cuda" else {}


# Kernel groups, by parts of the names of kernels; the first group that fits counts.
_KERNEL_GROUPS = {
    "matrix products": ("gemm", "nvjet", "xmma", "cutlass", "wgmma", "addmm", "cublas", "::mm"),
    "attention": ("flash", "fmha", "attention", "cudnn", "sdpa"),
    "optimizer": ("multi_tensor", "adam"),
    "copies": ("memcpy", "memset", "copy_"),
    "softmax": ("softmax",),
    "reductions": ("reduce",),
    "compiled": ("triton",),
}


def kernel_group(name: str) -> str:
    """Return the group of a kernel."""
    name = name.lower()
    groups = (group for group, parts in _KERNEL_GROUPS.items() if any(p in name for p in parts))
    return next(groups, "other")


def profile(report: Report, what: str, function: Callable[[], Any], *, calls: int = 3) -> None:
    """Add the milliseconds of kernels per call by group, and the ten kernels that take longest."""
    import torch
    from torch.profiler import ProfilerActivity

    on_gpu = report.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as trace:
        for _ in range(calls):
            function()
        synchronize(report.device)
    groups: dict[str, float] = {}
    kernels, launches = [], 0.0
    for event in trace.key_averages():
        is_kernel = str(event.device_type).endswith("CUDA") and not getattr(
            event, "is_user_annotation", False
        )
        if on_gpu and not is_kernel:
            continue
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if microseconds:
            group, milliseconds = kernel_group(event.key), microseconds / calls / 1e3
            groups[group] = groups.get(group, 0.0) + milliseconds
            kernels.append((milliseconds, event.count / calls, event.key[:100]))
            launches += event.count / calls
    report.add(
        f"{what}, profile",
        kernel_ms=sum(groups.values()),
        kernels=launches,
        groups=dict(sorted(groups.items(), key=lambda each: -each[1])),
        longest=[
            {"ms": milliseconds, "count": count, "kernel": name}
            for milliseconds, count, name in sorted(kernels, reverse=True)[:10]
        ],
    )


# --- the card


def ceilings(report: Report) -> None:
    """The copy bandwidth, reads and writes counted, and the FLOP/s of square matmuls."""
    import torch

    size = 2**20 if report.tiny else 2**30
    source = torch.zeros(size, dtype=torch.uint8, device=report.device)
    target = torch.empty_like(source)
    seconds = seconds_per_call(lambda: target.copy_(source), report.device, calls=20, warmup=3)
    report.add("copies", **{"GB/s": 2 * size / seconds / 1e9})
    width = 128 if report.tiny else 8192
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a = torch.ones(width, width, dtype=dtype, device=report.device)
        seconds = seconds_per_call(partial(torch.mm, a, a), report.device, calls=10, warmup=3)
        name = f"matmuls in {str(dtype).removeprefix('torch.')}"
        report.add(name, **{"TFLOP/s": 2 * width**3 / seconds / 1e12})


# --- training


@dataclass(frozen=True)
class Training:
    """A preset that is trained, a tiny one of its family, and the rows of a step."""

    preset: str
    tiny: str
    length: int
    rows: int
    objective: str = "causal"

    def shrink(self, report: Report) -> Training:
        """Return the training of the tiny preset if the report is of a CPU."""
        if not report.tiny:
            return self
        return replace(self, preset=self.tiny, length=32, rows=2)


GPT2 = Training("gpt2", "gpt2-tiny", 1024, 32)
BERT = Training("bert-base", "bert-tiny", 128, 256, "masked")
T5 = Training("t5-base", "t5-tiny", 512, 48, "span-corruption")
LLAMA = Training("llama3.2-1b", "llama-tiny", 2048, 8)


def train(report: Report, case: Training, *, attention: str = "sdpa") -> None:
    """Train a preset with the product's trainer; then repeat one batch, and profile its step.

    The difference of both is what the loop around a step costs.
    """
    import torch

    from trivium.models import flops_per_token
    from trivium.train.distributed import SINGLE_PROCESS
    from trivium.train.hardware import peak_flops
    from trivium.train.trainer import TrainState, forward_backward

    device, steps, warmup = report.device, (4 if report.tiny else 20), (2 if report.tiny else 5)
    started = time.perf_counter()
    trainer, memory = make_trainer(
        report, case.shrink(report), steps + warmup, {"kind": "adamw"}, attention
    )
    first_steps = start_clock_after(trainer, warmup, device)
    trainer.train(TrainState())
    synchronize(device)
    seconds = (time.perf_counter() - first_steps[0]) / steps
    batch = trainer.loader.step(0, SINGLE_PROCESS)
    spec = trainer.train_step.get_submodule("model").spec  # type: ignore[union-attr]
    flops = flops_per_token(spec, case.shrink(report).length) * batch.num_tokens
    peak = None if report.tiny else peak_flops(torch.device(device), trainer.precision)

    def add(what: str, seconds: float, **figures: float) -> None:
        """Add the speed of a step."""
        share = {} if peak is None else {"% of peak": 100 * flops / seconds / peak}
        report.add(
            what,
            **{"tokens/s": batch.num_tokens / seconds, "ms": 1e3 * seconds},
            **share,
            **figures,
        )

    planned = {"planned GB": memory.needed / 1e9, "seconds before": first_steps[0] - started}
    add("trivium, trainer", seconds, **peak_gb(device), **planned)

    def step() -> None:
        forward_backward(trainer, batch, 0)
        torch.nn.utils.clip_grad_norm_(trainer.train_step.parameters(), 1.0)
        for each in trainer.optimizers:
            each.step()
            each.zero_grad(set_to_none=True)

    trainer.train_step.train()
    repeated = seconds_per_call(step, device, calls=steps, warmup=2)
    add("trivium, one batch repeated", repeated)
    report.add("loop around a step", **{"% of a step": 100 * (seconds / repeated - 1)})
    profile(report, "trivium", step)


def make_trainer(
    report: Report,
    case: Training,
    steps: int,
    optimizer: Mapping[str, Any],
    attention: str = "sdpa",
) -> tuple[Any, Any]:
    """Return a trainer on random tokens, as a run has it, and the memory that is planned for it.

    FlexAttention (`attention` "flex") needs a GPU. Without one the default is measured.
    """
    from trivium.plan.forecast import build_trainer_without_data
    from trivium.train.recipe_loading import load_recipe

    never = 10**6
    changes = {
        "data": {"length": case.length},
        "model": {"dropout": 0.0},
        "objective": {"kind": case.objective},
        "optimizer": optimizer,
        "train": {
            "steps": steps,
            "attention": "sdpa" if report.tiny else attention,
            "batch_tokens": case.rows * case.length,
            "eval_every": never,
            "save_every": never,
            "device": report.device,
            "precision": "fp32" if report.tiny else "auto",
        },
    }
    return build_trainer_without_data(load_recipe(case.preset, changes))


def start_clock_after(trainer: Any, warmup: int, device: str) -> list[float]:
    """Return a list to which the trainer adds the time at which it has done some steps."""
    from trivium.train.callback import Callback

    started: list[float] = []

    class StepClock(Callback):
        def on_step(self, step: int, progress: float) -> None:
            if step == warmup:
                synchronize(device)
                started.append(time.perf_counter())

    trainer.callbacks = [StepClock()]
    return started


def train_transformers(report: Report, case: Training) -> None:
    """Train the same shape of `transformers` on one repeated batch, compiled on a GPU."""
    import torch

    case, device = case.shrink(report), report.device
    model = peer_model(case.preset, device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    network = model if report.tiny else torch.compile(model)
    ids = torch.randint(5, 1000, (case.rows, case.length), device=device)
    labels = ids
    if case.preset.startswith("bert"):  # every seventh token is masked
        labels = torch.where(torch.arange(case.length, device=device) % 7 == 0, ids, -100)
    if case.preset.startswith("t5"):  # spans of 3 tokens, 15 %, with a sentinel each
        labels = ids[:, : max(1, case.length * 2 // 9)].contiguous()

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=not report.tiny):
            loss = network(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = seconds_per_call(step, device, calls=2 if report.tiny else 10, warmup=3)
    rate = ids.numel() / seconds
    report.add(
        "transformers, one batch repeated",
        **{"tokens/s": rate, "ms": 1e3 * seconds},
        **peak_gb(device),
    )
    profile(report, "transformers", step)


def peer_model(preset: str, device: str, dtype: str = "float32") -> Any:
    """Return the model of `transformers` with the shape of a preset and random weights."""
    import torch
    import transformers

    from trivium.interop.convert import to_hugging_face
    from trivium.models import build
    from trivium.presets import presets

    options, _ = to_hugging_face(build(presets[preset].with_dropout(0.0), device="meta"))
    options |= {"pad_token_id": 0, "decoder_start_token_id": 0}
    config = transformers.AutoConfig.for_model(**options)
    kind = transformers.AutoModelForCausalLM
    if config.model_type == "bert":
        kind = transformers.AutoModelForMaskedLM
    elif config.is_encoder_decoder:
        kind = transformers.AutoModelForSeq2SeqLM
    with torch.device(device):
        return kind.from_config(config, dtype=getattr(torch, dtype))


def loss(report: Report) -> None:
    """The loss of GPT-2's vocabulary with its gradients, in every variant that it has."""
    import torch

    from trivium.nn import linear_cross_entropy

    device = report.device
    rows, width, vocab_size = (64, 16, 257) if report.tiny else (32_768, 768, 50_257)
    features = torch.randn(rows, width, device=device, requires_grad=True)
    weight = torch.randn(vocab_size, width, device=device, requires_grad=True)
    targets = torch.randint(vocab_size, (rows,), device=device)

    def step(compiled: bool, multiple: int) -> None:
        with torch.autocast(device, torch.bfloat16):
            total = linear_cross_entropy(
                features, weight, None, targets, compiled=compiled, vocab_multiple=multiple
            )
        total.backward()

    for compiled, multiple in itertools.product((False, True), (1, 64)):
        call = partial(step, compiled and not report.tiny, multiple)
        milliseconds = 1e3 * seconds_per_call(call, device, calls=10, warmup=3)
        name = "compiled" if compiled else "not compiled"
        report.add(f"{name}, rows padded to a multiple of {multiple}", ms=milliseconds)


def optimizers(report: Report) -> None:
    """A step of every optimizer for GPT-2 124M."""
    import torch

    kinds = {"adamw": {}, "muon": {}, "muon, compiled": {"compile": not report.tiny}}
    for name, options in kinds.items():
        optimizer = {"kind": name.partition(",")[0], **options}
        trainer, _ = make_trainer(report, GPT2.shrink(report), 1, optimizer)
        for parameter in trainer.train_step.parameters():
            parameter.grad = torch.randn_like(parameter)

        def step(optimizers: Any = trainer.optimizers) -> None:
            for each in optimizers:
                each.step()

        seconds = seconds_per_call(step, report.device, calls=3 if report.tiny else 20, warmup=3)
        report.add(name, ms=1e3 * seconds)


# --- decoding

DECODING: dict[str, dict[str, Any]] = {
    "trivium": {},
    "trivium, compiled": {"compile": True},
    "trivium, fused": {"fused": True},
    "trivium, no graph": {"cuda_graph": False},
}
"""Mode -> options of `Engine`."""


def decoder_preset(report: Report) -> str:
    """Return the preset whose decoding is measured: the largest that fits with 64 texts."""
    import torch

    if report.tiny:
        return "llama-tiny"
    large = torch.cuda.get_device_properties(0).total_memory > 30e9
    return "llama-7b" if large else "llama3.2-1b"


def random_decoder(report: Report) -> Any:
    """Return a text model with random bfloat16 weights that never ends a text."""
    import torch
    from generate import endless

    from trivium.models import build
    from trivium.presets import presets

    module = build(presets[decoder_preset(report)], device="meta")
    assert not [*module.buffers()]  # only parameters are set below
    module = module.to(torch.bfloat16).to_empty(device=report.device)
    for parameter in module.requires_grad_(False).parameters():
        parameter.normal_(std=0.02)
    return endless(module.eval(), translates=False)


def decode(report: Report, mode: str) -> None:
    """Decode 1, 8 and 64 texts greedily after prompts of 64 tokens; profile the step of one."""
    from trivium.inference.engine import Engine

    lm, new_tokens = random_decoder(report), (4 if report.tiny else 48)
    read = sum(each.numel() * each.element_size() for each in lm.module.parameters())
    read -= lm.module.tokens.weight.nbytes
    for texts in (1, 2) if report.tiny else (1, 8, 64):
        engine = Engine(lm, slots=texts, slot_length=256, **DECODING[mode])
        fill_slots(engine, texts, new_tokens)
        count_steps(engine)  # compiles and captures
        speeds = []
        for _ in range(2):
            fill_slots(engine, texts, new_tokens)
            synchronize(report.device)
            started = time.perf_counter()
            steps = count_steps(engine)
            synchronize(report.device)
            speeds.append((time.perf_counter() - started) / steps)
        seconds = min(speeds)
        report.add(
            f"{mode}, {texts} texts",
            model=decoder_preset(report),
            **{
                "tokens/s": texts / seconds,
                "ms": 1e3 * seconds,
                "weights GB/s": read / seconds / 1e9,
            },
            **peak_gb(report.device),
        )
        if texts == 1:
            fill_slots(engine, texts, new_tokens)
            profile(report, f"{mode}, {texts} texts", engine.step)
            count_steps(engine)


def fill_slots(engine: Any, texts: int, new_tokens: int, length: int = 64) -> None:
    """Read one prompt into every slot of the engine."""
    from trivium.inference.request import GenerationRequest
    from trivium.inference.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_new_tokens=new_tokens)
    for text in range(texts):
        prompt = [5 + (7 * text + place) % 900 for place in range(length)]
        engine.add(GenerationRequest(prompt, params))
    engine.step()


def count_steps(engine: Any) -> int:
    """Return the number of steps until the engine has nothing left to do."""
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
    return steps


def decode_transformers(report: Report) -> None:
    """`generate` with the static cache, whose decode step is compiled on a GPU, and the dynamic."""
    import torch

    model = peer_model(decoder_preset(report), report.device, "bfloat16").eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    new_tokens = 4 if report.tiny else 48

    def generate(texts: int, count: int, cache: str | None) -> None:
        ids = torch.full((texts, 64), 7, device=report.device)
        options = {} if cache is None else {"cache_implementation": cache}
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=count,
                max_new_tokens=count,
                do_sample=False,
                **options,
            )

    for cache in ("static", None):
        for texts in (1, 2) if report.tiny else (1, 8, 64):
            seconds = [
                seconds_per_call(
                    partial(generate, texts, count, cache), report.device, calls=1, warmup=1
                )
                for count in (1, new_tokens)
            ]
            step = (seconds[1] - seconds[0]) / (new_tokens - 1)  # without reading the prompt
            report.add(
                f"transformers, {cache or 'dynamic'} cache, {texts} texts",
                model=decoder_preset(report),
                **{"tokens/s": texts / step, "ms": 1e3 * step},
                **peak_gb(report.device),
            )


def prefill(report: Report) -> None:
    """Read a prompt of 4,096 tokens, up to the first new token."""
    from trivium.inference.engine import Engine

    lm, length = random_decoder(report), (256 if report.tiny else 4096)
    engine = Engine(lm, slots=1, slot_length=length + 8)
    seconds = seconds_per_call(
        lambda: (fill_slots(engine, 1, 1, length), count_steps(engine)),
        report.device,
        calls=3,
        warmup=1,
    )
    report.add(f"trivium, {length} tokens", **{"tokens/s": length / seconds, "ms": 1e3 * seconds})


def prefill_transformers(report: Report) -> None:
    """Read the same number of tokens with `transformers`, for the logits of the last."""
    import torch

    model = peer_model(decoder_preset(report), report.device, "bfloat16").eval()
    ids = torch.full((1, 256 if report.tiny else 4096), 7, device=report.device)
    with torch.inference_mode():
        seconds = seconds_per_call(
            lambda: model(ids, use_cache=True, logits_to_keep=1), report.device, calls=3, warmup=1
        )
    length = ids.shape[1]
    rates = {"tokens/s": length / seconds, "ms": 1e3 * seconds}
    report.add(f"transformers, {length} tokens", **rates)


def serve(report: Report) -> None:
    """`trivium serve` of GPT-2 124M with 64 clients that send one request after the other."""
    import serve_load

    for package in ("fastapi", "uvicorn"):
        importlib.import_module(package)  # the part is skipped if one is missing
    clients = 2 if report.tiny else 64
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        serve_load.make_folder(folder, "gpt2-tiny" if report.tiny else "gpt2")
        job = argparse.Namespace(
            folder=str(folder),
            clients=clients,
            slots=clients,
            seconds=1.0 if report.tiny else 20.0,
            new_tokens=serve_load.NEW_TOKENS,
        )
        report.add(f"trivium serve, {clients} clients", **serve_load.run_trivium(job))


def tests(report: Report) -> None:
    """The tests that need a GPU; on a CPU they are only collected."""
    importlib.import_module("pytest")  # the part is skipped if it is missing
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-p", "no:cacheprovider"]
    if report.tiny:
        command += ["--collect-only", "tests/nn"]
    counts = dict.fromkeys(("PASSED", "FAILED", "ERROR", "SKIPPED"), 0)
    failed: list[str] = []
    report.add("tests")
    with subprocess.Popen(
        command, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if (found := re.match(r"(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)", line)) is None:
                continue
            counts[found[2]] += 1
            failed += [found[1]] if found[2] in ("FAILED", "ERROR") else []
            report.results[-1] = {"what": "tests", **counts, "failed": failed}
            report.write()
    if failed or (process.returncode and not report.tiny):
        raise RuntimeError(f"pytest ended with {process.returncode}")


PARTS = {
    "ceilings": Part(ceilings, 40),
    "train-gpt2": Part(partial(train, case=GPT2), 120),
    "train-gpt2-transformers": Part(partial(train_transformers, case=GPT2), 120),
    "decode": Part(partial(decode, mode="trivium"), 100),
    "decode-transformers": Part(decode_transformers, 150),
    "decode-compiled": Part(partial(decode, mode="trivium, compiled"), 180),
    "decode-fused": Part(partial(decode, mode="trivium, fused"), 100),
    "loss": Part(loss, 60),
    "optimizers": Part(optimizers, 60),
    "tests": Part(tests, 240),
    "train-llama": Part(partial(train, case=LLAMA), 180),
    "train-llama-transformers": Part(partial(train_transformers, case=LLAMA), 150),
    "train-t5": Part(partial(train, case=T5), 150),
    "train-t5-transformers": Part(partial(train_transformers, case=T5), 150),
    "train-t5-flex": Part(partial(train, case=T5, attention="flex"), 150),
    "train-bert": Part(partial(train, case=BERT), 120),
    "train-bert-transformers": Part(partial(train_transformers, case=BERT), 120),
    "prefill": Part(prefill, 60),
    "prefill-transformers": Part(prefill_transformers, 60),
    "serve": Part(serve, 120),
    "decode-no-graph": Part(partial(decode, mode="trivium, no graph"), 100),
}
"""The parts by name, the most important first."""

_LEAST_SECONDS = 20.0
"""A part that has less time left is not started."""


def select_parts(names: str | None) -> list[str]:
    """Return the names of the parts to run, separated by commas; None: all."""
    if names is None:
        return [*PARTS]
    chosen = [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in PARTS]:
        raise SystemExit(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}.")
    return [name for name in PARTS if name in chosen]


def run_child(name: str, out: Path, device: str) -> None:
    """Run one part in this process; its file says how it ended."""
    report = Report(out / f"{name}.json", device)
    report.write()
    try:
        PARTS[name].run(report)
        report.status = "complete"
    except ModuleNotFoundError as error:
        report.status = f"skipped: the package {error.name} is not installed"
    except Exception as error:
        traceback.print_exc()
        report.status = f"failed: {type(error).__name__}: {error}"[:500]
    report.write()


def run_part(name: str, out: Path, *, tiny: bool, seconds: float) -> dict[str, Any]:
    """Run one part in a process of its own. Returns its status and results."""
    started, path = time.perf_counter(), out / f"{name}.json"
    write_json(path, {"status": "not started", "results": []})
    command = [sys.executable, __file__, "--part", name, "--out", str(out)]
    command += ["--tiny"] if tiny else []
    with (out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(timeout=seconds)
            ended = f"failed: the process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the server or tests that it started
                process.wait()
    result = json.loads(path.read_text())
    if result["status"] in ("not started", "running"):
        result["status"] = ended
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_json(path, result)
    return result


def table(name: str, result: dict[str, Any]) -> list[str]:
    """Return Markdown rows: every number of a part."""
    lines = [f"| {name} | {result['status']} | {result['seconds']:.0f} s |"]
    for each in result["results"]:
        numbers = {**each, **each.get("groups", {})}
        figures = [
            f"{key} {value:,.4g}"
            for key, value in numbers.items()
            if isinstance(value, int | float)
        ]
        lines.append(f"| | {each['what']} | {', '.join(figures)} |")
    return lines


def machine() -> str:
    """Return the device and the versions in one line."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{name}, Python {sys.version.split()[0]}, PyTorch {torch.__version__}"


def run_parts(names: Iterable[str], out: Path, *, minutes: float, tiny: bool) -> int:
    """Run parts while there is time, and print their table. Returns the number of failed parts."""
    out.mkdir(parents=True, exist_ok=True)
    stop = time.monotonic() + 60 * minutes
    results: dict[str, dict[str, Any]] = {}
    missed = []
    print(f"{machine()}; results in {out}", flush=True)
    for name in names:
        left = stop - time.monotonic()
        if left < _LEAST_SECONDS:
            missed.append(name)
            continue
        results[name] = run_part(name, out, tiny=tiny, seconds=min(left, PARTS[name].limit))
        print("\n".join(table(name, results[name])), flush=True)
        summary = {name: each["status"] for name, each in results.items()}
        write_json(out / "summary.json", {"machine": machine(), "parts": summary})
    if missed:
        print(f"not reached: {', '.join(missed)}")
    write_json(
        out / "summary.json",
        {
            "machine": machine(),
            "parts": {name: each["status"] for name, each in results.items()},
            "not reached": missed,
        },
    )
    return sum(each["status"].startswith("failed") for each in results.values())


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--parts", help="only these, separated by commas")
    options.add_argument("--minutes", type=float, default=8.0, help="of all parts together")
    options.add_argument("--list", action="store_true", help="print the parts and their limits")
    options.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "gpu-results")), help="folder"
    )
    options.add_argument("--tiny", action="store_true", help="tiny models on a CPU")
    options.add_argument("--part", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.part is not None:
        run_child(chosen.part, chosen.out, "cpu" if chosen.tiny else "cuda")
        return
    if chosen.list:
        for name, part in PARTS.items():
            print(f"{name:<26}{part.limit:>5.0f} s")
        return
    import torch

    names = select_parts(chosen.parts)
    if not chosen.tiny and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU here; --tiny tries the program on a CPU.")
    failed = run_parts(names, chosen.out, minutes=chosen.minutes, tiny=chosen.tiny)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
