"""Mixers and positions, like for like: the same width, layers, data and budget.

Every kind is the mixer of one small decoder; all else is equal, feed-forward networks too (which
Mamba as published has not).

    python benchmarks/attention.py speed            # training and generating by length
    python benchmarks/attention.py learn            # loss after the same tokens and the same time
    python benchmarks/attention.py tasks            # copying, and recall of pairs
    python benchmarks/attention.py speed --sides mamba performer --lengths 512 2048
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from side_by_side import Figures, compare, is_child, parser, read_metrics

WIDTH, LAYERS, HEADS, VOCABULARY = 256, 4, 4, 2048
HEAD_DIM = WIDTH // HEADS
TASK_STEPS, TASK_ROWS = 1500, 32


def main() -> None:
    """Run one of the three comparisons."""
    options = parser(__doc__, rounds=1)
    options.add_argument("what", nargs="?", choices=("speed", "learn", "tasks"), default="speed")
    options.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    options.add_argument("--minutes", type=float, default=5.0, help="of each kind, of learn")
    options.add_argument("--tokens", type=int, default=1_000_000, help="the other budget of learn")
    arguments = options.parse_args()
    if is_child(arguments, {name: partial(run, name) for name in kinds()}):
        return
    jobs: dict[str, dict[str, Any]] = {
        "speed": {f"{length} tokens": {"length": length} for length in arguments.lengths},
        "learn": {f"{arguments.minutes:g} minutes of English": {"length": 512}},
        "tasks": {task: {"task": task, "length": 128} for task in ("copying", "recall")},
    }[arguments.what]
    common = {key: getattr(arguments, key) for key in ("what", "minutes", "tokens")}
    compare(arguments, kinds(), {name: {**job, **common} for name, job in jobs.items()})


def kinds() -> dict[str, Callable[[int], tuple[Any, Any]]]:
    """By name, the mixer of a text of some length, and the positions that are added to tokens."""
    from trivium import spec
    from trivium.spec.mixers.mamba import Mamba
    from trivium.spec.mixers.performer import Performer
    from trivium.spec.mixers.segment_attention import SegmentAttention
    from trivium.spec.patterns.fixed import Fixed
    from trivium.spec.positions.relative_scores import RelativeScores

    performer = Performer(num_heads=HEADS, head_dim=HEAD_DIM, num_features=HEAD_DIM)
    mamba = Mamba(d_inner=2 * WIDTH, dt_rank=WIDTH // 16)
    sliding = spec.Sliding(window=127)
    segments = SegmentAttention(
        num_heads=HEADS, head_dim=HEAD_DIM, positions=RelativeScores(), pattern=sliding
    )

    def attention(positions: Any = None, **fields: Any) -> spec.Attention:
        return spec.Attention(num_heads=HEADS, head_dim=HEAD_DIM, positions=positions, **fields)

    return {
        "learned positions": lambda t: (attention(), spec.Learned(max_length=t)),
        "sinusoids": lambda t: (attention(), spec.Sinusoidal(max_length=t)),
        "rotary": lambda t: (attention(spec.Rotary()), None),
        "alibi": lambda t: (attention(spec.ALiBi()), None),
        "relative bias": lambda t: (attention(spec.RelativeBias()), None),
        "relative scores": lambda t: (attention(RelativeScores()), None),
        "window": lambda t: (attention(spec.Rotary(), pattern=sliding), None),
        "fixed": lambda t: (
            attention(spec.Rotary(), pattern=Fixed(stride=128, num_summary=16)),
            None,
        ),
        "segments": lambda t: (segments, None),
        "performer": lambda t: (performer, spec.Learned(max_length=t)),
        "mamba": lambda t: (mamba, None),
    }


def run(kind: str, job: argparse.Namespace) -> Figures:
    """The figures of one kind."""
    mixer, positions = kinds()[kind](job.length)
    return {"speed": speed, "learn": learn, "tasks": tasks}[job.what](job, mixer, positions)


def described(mixer: Any, positions: Any, vocabulary: int = VOCABULARY) -> Any:
    """The decoder that all kinds are put into."""
    from trivium import spec

    return spec.ModelSpec(
        vocab_size=vocabulary,
        d_model=WIDTH,
        embedding=spec.Embedding(positions=positions),
        decoder=spec.Stack(
            num_layers=LAYERS,
            mixer=mixer,
            feed_forward=spec.FeedForward(d_ff=4 * WIDTH, activation="gelu"),
            norm=spec.LayerNorm(),
            norms=spec.PRE_NORM,
        ),
        heads=(spec.LMHead(tied=True),),
        initialization=spec.Normal(residual_init="scaled"),
    )


def speed(job: argparse.Namespace, mixer: Any, positions: Any) -> Figures:
    """Training steps of one row, and a text that is continued after `length` tokens."""
    import torch

    from trivium.models import build

    torch.set_num_threads(2)
    model = build(described(mixer, positions), seed=0)
    ids = torch.arange(job.length)[None] % VOCABULARY

    def train() -> None:
        model.zero_grad()
        hidden = model(ids[:, :-1])
        model.lm_loss(hidden.flatten(0, 1), ids[:, 1:].flatten()).backward()

    before = _peak()
    trained = job.length / _seconds(train, 3)
    figures = {"trained tokens/s": trained, "training MiB": _peak() - before}
    with torch.inference_mode():
        model.eval()
        cache = model.new_cache(1, job.length)
        model(ids[:, : job.length - 40], cache=cache)
        figures["ms per new token"] = 1000 * _seconds(lambda: model(ids[:, :1], cache=cache), 32)
    kept = sum(each.nbytes for state in cache.states for each in state.tensors)
    return {**figures, "state MiB": kept / 2**20}


def learn(job: argparse.Namespace, mixer: Any, positions: Any) -> Figures:
    """Held-out loss of bundled English after so many tokens, and after so many minutes."""
    import trivium
    from trivium.data.samples import sample

    spec = described(mixer, positions).to_dict()
    changes = {
        "model": {"spec": spec},
        "tokenizer": {"kind": "byte-bpe", "vocab_size": VOCABULARY},
        "objective": {"kind": "causal"},
        "data": {"length": job.length},
        "train": {"minutes": job.minutes, "eval_every": 50},
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        records = read_metrics(trivium.pretrain(changes, data=sample("en"), out=out).path)
    evaluated = [record for record in records if "valid_loss" in record]
    near = min(evaluated, key=lambda record: abs(record["tokens"] - job.tokens))
    return {
        "loss after the minutes": evaluated[-1]["valid_loss"],
        f"loss near {job.tokens:,} tokens": near["valid_loss"],
        "tokens": evaluated[-1]["tokens"],
    }


def tasks(job: argparse.Namespace, mixer: Any, positions: Any) -> Figures:
    """Share of right tokens after training on a task without end."""
    import torch

    from trivium.models import build

    torch.set_num_threads(2)
    model = build(described(mixer, positions, 64), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    example = {"copying": copying, "recall": recall}[job.task]
    start = time.perf_counter()
    right = []
    for step in range(TASK_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100) * (1.0 - step / TASK_STEPS)
        ids, asked = example(TASK_ROWS, job.length, generator)
        hidden = model(ids[:, :-1])[asked[:, 1:]]
        targets = ids[:, 1:][asked[:, 1:]]
        (model.lm_loss(hidden, targets) / len(targets)).backward()
        optimizer.step()
        optimizer.zero_grad()
        right.append((model.logits(hidden.detach()).argmax(-1) == targets).float().mean().item())
    return {"right": statistics.mean(right[-50:]), "seconds": time.perf_counter() - start}


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
    """Pairs of a key and a value, then the keys in another order (Arora et al. 2023, MQAR)."""
    import torch

    count = min(31, length // 4)
    keys = torch.rand(rows, 31, generator=generator).argsort(1)[:, :count] + 1
    values = torch.randint(32, 64, (rows, count), generator=generator)
    order = torch.rand(rows, count, generator=generator).argsort(1)
    pairs = torch.stack((keys, values), 2).flatten(1)
    again = torch.stack((keys.gather(1, order), values.gather(1, order)), 2).flatten(1)
    ids = torch.cat((pairs, again), 1)
    asked = torch.zeros_like(ids, dtype=torch.bool)
    asked[:, 2 * count + 1 :: 2] = True
    return ids, asked


def _seconds(work: Callable[[], object], times: int) -> float:
    """The median after one run."""
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _peak() -> float:
    """MiB that the process has taken at most."""
    unit = 2**20 if os.uname().sysname == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    main()
