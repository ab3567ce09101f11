"""Mixers and positions, like for like: the same width, layers, data and budget.

Every kind is the mixer of one small decoder; all else is equal, feed-forward networks too (which
neither Mamba nor RWKV as published has).

    python benchmarks/attention.py speed            # training and generating by length
    python benchmarks/attention.py learn            # loss after the same tokens and the same time
    python benchmarks/attention.py tasks            # copying, and recall of pairs
    python benchmarks/attention.py speed --sides mamba performer --lengths 512 2048
    python benchmarks/attention.py speed --device cuda --rows 8
    python benchmarks/attention.py plot             # docs/pictures/attention.svg

Figures are kept in `attention.json` beside this file, those of a kind until it is measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, Literal

from side_by_side import Figures, compare, is_child, parser, read_metrics

from trivium.files import write_json


@dataclass(frozen=True)
class Size:
    """Of the decoder that a kind is put into."""

    width: int = 256
    num_layers: int = 4
    vocab_size: int = 2048
    head_dim: int = 64
    window: int = 127
    std: float = 0.02
    residual_init: Literal["full", "scaled"] = "scaled"
    scale: float = 1.0


@dataclass(frozen=True)
class Task:
    """Rows of a step, the learning rate, and the last share of steps, in which it falls."""

    length: int = 64
    rows: int = 32
    rate: float = 2e-3
    decay: float = 1.0


SIZES = {
    "speed": Size(),
    "learn": Size(128, 2),
    "copying": Size(128, 2, 64),
    # Token vectors have to stay visible beside what layers of large weights add to them.
    "recall": Size(64, 2, 17, 16, window=15, std=0.1, residual_init="full", scale=8.0),
}
BATCH_TOKENS = 4096
TASKS = {"copying": Task(), "recall": Task(32, 64, 4e-3, 0.5)}
HERE = Path(__file__).parent
FIGURES, PICTURE = HERE / "attention.json", HERE.parent / "docs" / "pictures" / "attention.svg"


def main() -> None:
    """Run one of the three comparisons, or draw them."""
    options = parser(__doc__, rounds=1)
    options.add_argument(
        "what", nargs="?", choices=("speed", "learn", "tasks", "plot"), default="speed"
    )
    options.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    options.add_argument("--device", default="cpu", help="of speed")
    options.add_argument("--rows", type=int, default=1, help="of a training step of speed")
    options.add_argument("--minutes", type=float, default=3.0, help="of a core, of learn")
    options.add_argument("--steps", type=int, default=300, help="of each task")
    options.add_argument("--tasks", nargs="+", default=[*TASKS])
    options.add_argument("--tokens", type=int, default=1_000_000, help="the other budget of learn")
    arguments = options.parse_args()
    if is_child(arguments, {name: partial(run, name) for name in kinds()}):
        return
    if arguments.what == "plot":
        return plot(json.loads(FIGURES.read_text()))
    budgets = f"{arguments.minutes:g} minutes, {arguments.tokens:,} tokens of English"
    place = "" if arguments.device == "cpu" else f", {arguments.device}"
    jobs: dict[str, dict[str, Any]] = {
        "speed": {f"{length} tokens{place}": {"length": length} for length in arguments.lengths},
        "learn": {budgets: {"length": 512}},
        "tasks": {task: {"task": task, "length": TASKS[task].length} for task in arguments.tasks},
    }[arguments.what]
    names = ("what", "minutes", "tokens", "steps", "device", "rows")
    common = {name: getattr(arguments, name) for name in names}
    found = compare(arguments, kinds(), {name: {**job, **common} for name, job in jobs.items()})
    keep(found)


def kinds(size: Size = Size()) -> dict[str, Callable[[int], tuple[Any, Any]]]:
    """By name, the mixer of a text of some length, and the positions that are added to tokens."""
    from trivium import spec
    from trivium.spec import (
        Fixed,
        Mamba,
        Performer,
        TimeMixing,
        TransformerXLAttention,
        TransformerXLPositions,
    )

    heads, head_dim = size.width // size.head_dim, size.head_dim
    performer = Performer(num_heads=heads, head_dim=head_dim, num_features=64)
    mamba = Mamba(d_inner=2 * size.width, dt_rank=size.width // 16)
    sliding = spec.Sliding(window=size.window)
    segments = TransformerXLAttention(
        num_heads=heads, head_dim=head_dim, positions=TransformerXLPositions(), memory=size.window
    )

    def attention(positions: Any = None, **fields: Any) -> spec.Attention:
        return spec.Attention(num_heads=heads, head_dim=head_dim, positions=positions, **fields)

    return {
        "learned positions": lambda t: (attention(), spec.Learned(max_length=t)),
        "sinusoids": lambda t: (attention(), spec.Sinusoidal(max_length=t)),
        "rotary": lambda t: (attention(spec.Rotary()), None),
        "alibi": lambda t: (attention(spec.ALiBi()), None),
        "relative bias": lambda t: (attention(spec.RelativeBias()), None),
        "relative scores": lambda t: (attention(TransformerXLPositions()), None),
        "window": lambda t: (attention(spec.Rotary(), pattern=sliding), None),
        "fixed": lambda t: (
            attention(spec.Rotary(), pattern=Fixed(stride=128, num_summary=16)),
            None,
        ),
        "segments": lambda t: (segments, None),
        "performer": lambda t: (performer, spec.Learned(max_length=t)),
        "mamba": lambda t: (mamba, None),
        "rwkv": lambda t: (TimeMixing(d_inner=size.width), None),
    }


def run(kind: str, job: argparse.Namespace) -> Figures:
    """The figures of one kind."""
    size = SIZES[job.task if job.what == "tasks" else job.what]
    model = described(size, *kinds(size)[kind](job.length))
    return {"speed": speed, "learn": learn, "tasks": tasks}[job.what](job, model)


def described(size: Size, mixer: Any, positions: Any) -> Any:
    """The decoder that all kinds are put into."""
    from trivium import spec

    # Sinusoids are as large as token vectors are after the scale of Vaswani et al. 2017.
    scale = size.width**0.5 if isinstance(positions, spec.Sinusoidal) else size.scale
    start = spec.Normal(std=size.std, embedding_std=size.std, residual_init=size.residual_init)
    return spec.TransformerSpec(
        vocab_size=size.vocab_size,
        d_model=size.width,
        embedding=spec.Embedding(positions=positions, scale=scale),
        decoder=spec.Stack.from_mixers(
            num_layers=size.num_layers,
            mixer=mixer,
            feed_forward=spec.MLP(d_ff=4 * size.width, activation="gelu"),
            norm=spec.LayerNorm(),
            norm_placement="pre",
        ),
        heads=(spec.LMHead(tied=True),),
        initialization=start,
    )


def speed(job: argparse.Namespace, spec: Any) -> Figures:
    """Training steps of some rows, and a text that is continued after `length` tokens.

    On a GPU in bfloat16, with the memory of its tensors.
    """
    import torch

    from trivium.models import build

    torch.set_num_threads(1)
    on_gpu = job.device != "cpu"
    model = build(spec, seed=0).to(job.device)
    ids = torch.arange(job.length, device=job.device)[None] % spec.vocab_size
    rows = ids.expand(job.rows, -1)

    def train() -> None:
        model.zero_grad()
        with torch.autocast(job.device, torch.bfloat16, enabled=on_gpu):
            hidden = model(rows[:, :-1])
            loss = model.lm_loss(hidden.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()

    before = _peak(job.device)
    times = 10 if on_gpu else 3 if job.length < 4096 else 1
    trained = rows.numel() / _seconds(train, times, job.device)
    figures = {"trained tokens/s": trained, "training MiB": _peak(job.device) - before}
    model.zero_grad(set_to_none=True)
    with torch.inference_mode():
        model.eval()
        cache = model.new_cache(1, job.length)
        model(ids[:, : job.length - 40], cache=cache)
        step = _seconds(lambda: model(ids[:, :1], cache=cache), 32, job.device)
        figures["ms per new token"] = 1000 * step
    kept = sum(each.nbytes for state in cache.states for each in state.tensors)
    return {**figures, "state MiB": kept / 2**20}


def learn(job: argparse.Namespace, spec: Any) -> Figures:
    """Held-out loss of bundled English after so many tokens, and after so many CPU minutes.

    The second run has as many tokens as the speed of the first one says.
    """
    import trivium
    from trivium.data.samples import sample_path

    def train(steps: int) -> tuple[float, float]:
        changes = {
            "model": {"spec": spec.to_dict()},
            "tokenizer": {"kind": "byte-bpe", "vocab_size": spec.vocab_size},
            "objective": {"kind": "causal"},
            "data": {"length": job.length},
            "train": {"steps": steps, "batch_tokens": BATCH_TOKENS, "eval_every": steps},
        }
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "run")
            records = read_metrics(trivium.pretrain(changes, data=sample_path("en"), out=out).path)
        [*_, loss] = [record["valid_loss"] for record in records if "valid_loss" in record]
        return loss, time.process_time() - start

    steps = job.tokens // BATCH_TOKENS
    loss, seconds = train(steps)
    affordable = round(steps * 60 * job.minutes / seconds)
    return {
        "loss after the tokens": loss,
        "loss after the minutes": train(affordable)[0],
        "tokens of the minutes": affordable * BATCH_TOKENS,
    }


def tasks(job: argparse.Namespace, spec: Any) -> Figures:
    """Share of right tokens after training on a task without end."""
    import torch

    from trivium.models import build

    torch.set_num_threads(1)
    model = build(spec, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    task, example = TASKS[job.task], {"copying": copying, "recall": recall}[job.task]
    start = time.process_time()
    right = []
    for step in range(job.steps):
        for group in optimizer.param_groups:
            share = min(1.0, (step + 1) / 50) * min(1.0, (1.0 - step / job.steps) / task.decay)
            group["lr"] = task.rate * share
        ids, asked = example(task.rows, task.length, generator)
        hidden = model(ids[:, :-1])[asked[:, 1:]]
        targets = ids[:, 1:][asked[:, 1:]]
        (model.lm_loss(hidden, targets) / len(targets)).backward()
        optimizer.step()
        optimizer.zero_grad()
        right.append((model.logits(hidden.detach()).argmax(-1) == targets).float().mean().item())
    return {"right": statistics.mean(right[-50:]), "seconds": time.process_time() - start}


def copying(rows: int, length: int, generator: Any) -> tuple[Any, Any]:
    """A random text, a mark, and the text again (Jelassi et al. 2024): ids, and what is asked."""
    import torch

    half = (length - 1) // 2
    text = torch.randint(1, 64, (rows, half), generator=generator)
    ids = torch.cat((text, text.new_zeros(rows, 1), text), 1)
    asked = torch.zeros_like(ids, dtype=torch.bool)
    asked[:, half + 1 :] = True
    return ids, asked


def recall(rows: int, length: int, generator: Any) -> tuple[Any, Any]:
    """Pairs of a key and a value, then keys of them at random (Arora et al. 2023, MQAR).

    A quarter of the row is pairs; there are twice as many keys, and as many values.
    """
    import torch

    count = length // 8
    keys = torch.rand(rows, 2 * count, generator=generator).argsort(1)[:, :count] + 1
    values = torch.randint(2 * count + 1, 4 * count + 1, (rows, count), generator=generator)
    order = torch.randint(count, (rows, length // 2 - count), generator=generator)
    pairs = torch.stack((keys, values), 2).flatten(1)
    again = torch.stack((keys.gather(1, order), values.gather(1, order)), 2).flatten(1)
    ids = torch.cat((pairs, again), 1)
    asked = torch.zeros_like(ids, dtype=torch.bool)
    asked[:, 2 * count + 1 :: 2] = True
    return ids, asked


def keep(found: dict[str, dict[str, list[Figures]]]) -> None:
    """Put the medians of every job and kind into the file of figures."""
    figures = json.loads(FIGURES.read_text()) if FIGURES.is_file() else {}
    for job, sides in found.items():
        for kind, rows in sides.items():
            names = rows[0] if rows else ()
            medians = {name: statistics.median(row[name] for row in rows) for name in names}
            figures.setdefault(job, {})[kind] = medians
    write_json(FIGURES, figures)


def plot(figures: dict[str, dict[str, Figures]]) -> None:
    """Speed and memory by length, losses after both budgets, and both tasks, in one picture."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "attention"}
    )
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(11, 6.5), layout="constrained")
    styles = {kind: (f"C{i % 10}", "os^"[i // 10]) for i, kind in enumerate(kinds())}
    lengths = {int(job.split()[0]): job for job in figures if job.endswith(" tokens")}
    for axis, name in zip(
        axes.flat, ("trained tokens/s", "training MiB", "ms per new token", "state MiB")
    ):
        for kind, (color, marker) in styles.items():
            measured = [(x, figures[lengths[x]].get(kind, {}).get(name)) for x in sorted(lengths)]
            points = [(x, y) for x, y in measured if y is not None]
            axis.loglog(*zip(*points), color=color, marker=marker, label=kind, lw=1, ms=4)
        axis.set(title=name, xlabel="tokens", xticks=[*lengths], xticklabels=[*lengths])
        axis.minorticks_off()
    for job, sides in figures.items():
        if job.endswith("of English"):
            minutes, tokens = job.removesuffix(" of English").split(", ", 1)
            for kind, found in sides.items():
                x, y = found["loss after the tokens"], found["loss after the minutes"]
                axes[1, 1].plot(x, y, marker=styles[kind][1], color=styles[kind][0], ms=5)
            axes[1, 1].set(title="validation loss, nats", xlabel=f"after {tokens}")
            axes[1, 1].set(ylabel=f"after {minutes}")
    tasks = [task for task in ("copying", "recall") if task in figures]
    for number, task in enumerate(tasks):
        rights = [figures[task].get(kind, {}).get("right", nan) for kind in styles]
        heights = [len(styles) - i - 0.4 * number for i in range(len(styles))]
        axes[1, 2].barh(heights, rights, 0.38, label=task)
    axes[1, 2].set(title="share of right tokens", yticks=range(len(styles), 0, -1))
    axes[1, 2].set_yticklabels(styles)
    axes[1, 2].legend()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    figure.savefig(PICTURE, metadata={"Date": None})


def _seconds(work: Callable[[], object], times: int, device: str) -> float:
    """The median after one run: of one core, or of the GPU with its waiting for the program."""
    import torch

    clock = time.process_time if device == "cpu" else time.perf_counter
    taken = []
    for _ in range(times + 1):
        start = clock()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(clock() - start)
    return statistics.median(taken[1:])


def _peak(device: str) -> float:
    """MiB that the process, or on a GPU its tensors, have taken at most."""
    import torch

    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if os.uname().sysname == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    main()
