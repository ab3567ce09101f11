"""A sliding window and full attention on long texts: training steps and forward passes.

python benchmarks/windows.py
python benchmarks/windows.py --length 8192 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from side_by_side import Figures, compare, is_child, parser

_STEPS = 3


def main() -> None:
    """Run all sides."""
    options = parser(__doc__, rounds=3)
    options.add_argument("--length", type=int, default=4096, help="tokens of the text")
    options.add_argument("--window", type=int, default=63, help="tokens seen before a token")
    arguments = options.parse_args()
    if is_child(arguments, SIDES):
        return
    job = {"length": arguments.length, "window": arguments.window}
    name = f"{arguments.length} tokens, window {arguments.window}"
    compare(arguments, SIDES, {name: job})


def window(job: argparse.Namespace) -> Figures:
    """A small Mistral."""
    return _ours(job, job.window)


def full(job: argparse.Namespace) -> Figures:
    """The same without its window."""
    return _ours(job, None)


def transformers_window(job: argparse.Namespace) -> Figures:
    """The peer's Mistral of the same sizes."""
    import torch
    import transformers

    spec = _spec(None)
    (attention, *_), stack = spec.decoder.attentions, spec.decoder
    config = transformers.MistralConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.d_model,
        intermediate_size=stack.d_ff,
        num_hidden_layers=stack.num_layers,
        num_attention_heads=attention.num_heads,
        num_key_value_heads=attention.kv_heads,
        sliding_window=job.window + 1,
        max_position_embeddings=job.length,
    )
    model = transformers.MistralModel(config)
    ids = torch.arange(job.length)[None] % spec.vocab_size
    return _measure(model, lambda: model(ids, use_cache=False).last_hidden_state, job.length)


def _ours(job: argparse.Namespace, size: int | None) -> Figures:
    import torch

    from trivium.models import build

    spec = _spec(size)
    model = build(spec, seed=0)
    ids = torch.arange(job.length)[None] % spec.vocab_size
    return _measure(model, lambda: model(ids), job.length)


def _spec(size: int | None):
    from trivium.presets import presets
    from trivium.spec import Sliding

    spec = presets["mistral-mini"].replace(vocab_size=1000)
    pattern = None if size is None else Sliding(window=size)
    (mixer, *_) = spec.decoder.attentions
    return spec.replace(decoder=spec.decoder.with_layers(mixer=mixer.replace(pattern=pattern)))


def _measure(model, read: Callable, length: int) -> Figures:
    import torch

    def train() -> None:
        model.zero_grad()
        read().square().mean().backward()

    def forward() -> None:
        with torch.inference_mode():
            read()

    return {
        "trained tokens/s": length / _seconds(train),
        "read tokens/s": length / _seconds(forward),
    }


def _seconds(work: Callable[[], None]) -> float:
    """The median of some runs after one."""
    times = []
    for _ in range(_STEPS + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


SIDES = {
    "trivium, window": window,
    "trivium, full attention": full,
    "transformers, window": transformers_window,
}

if __name__ == "__main__":
    main()
