"""Ways to compute Mamba's state over a row on a CPU: forward and backward pass of one layer.

All multiply and add; none divides by a product of decays, which underflows in float32. The plain
loop keeps all states for the backward pass; the others are shown as multiples of its time, the
smallest of all rounds.

python benchmarks/scan.py
python benchmarks/scan.py --rounds 9 --rows 1
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.nn.context import Context
from trivium.nn.mixers import mamba
from trivium.spec.mixers.mamba import Mamba

LENGTHS = 256, 1024, 4096
THREADS, CHUNK = 2, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    part = Mamba(d_inner=2 * options.width, dt_rank=options.width // 16)
    layer = mamba.MambaMixer(part, options.width)
    generator = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=options.width**-0.5, generator=generator)
    layer.reset_parameters(generator)
    print(
        f"{options.rows} rows, width {options.width}, {THREADS} threads; milliseconds of the loop,"
    )
    print("the time of the others as a multiple of it\n")
    print(f"{'length':>8}{'plain loop':>12}" + "".join(f"{name:>20}" for name in [*WAYS][1:]))
    for length in LENGTHS:
        x = torch.randn(options.rows, length, options.width, generator=generator)
        seconds, gradients = dict.fromkeys(WAYS, float("inf")), {}
        for _ in range(options.rounds):
            for name, (segment, scan) in WAYS.items():
                taken, gradients[name] = measure(layer, x, segment or length, scan)
                seconds[name] = min(seconds[name], taken)
        first = gradients["plain loop"]
        for name, other in gradients.items():
            assert (other - first).abs().max() < 1e-3 * first.abs().max(), name
        base = seconds["plain loop"]
        ratios = "".join(f"{seconds[name] / base:>20.2f}" for name in [*WAYS][1:])
        print(f"{length:>8}{1e3 * base:>12.0f}{ratios}", flush=True)


def measure(layer: mamba.MambaMixer, x: Tensor, segment: int, scan) -> tuple[float, Tensor]:
    """Seconds of a pass, and the gradient of the decays."""
    context = Context.of_length(x.shape[1], causal=True)
    layer.zero_grad()

    def at_once(function, *arguments, **_):
        return function(*arguments)

    whole = segment == x.shape[1]
    recompute = at_once if whole else mamba.checkpoint
    with mock.patch.multiple(mamba, SEGMENT=segment, scan=scan, checkpoint=recompute):
        start = time.perf_counter()
        layer(x, context).square().mean().backward()
        seconds = time.perf_counter() - start
    assert layer.log_decay.grad is not None
    return seconds, layer.log_decay.grad.clone()


def side_by_side(decay: Tensor, new: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Chunks at the same time, as if nothing were before them; then what is before is added."""
    length = new.shape[1]
    padding = (0, 0) * (new.ndim - 2) + (0, -length % CHUNK)
    decays = F.pad(decay, padding, value=1.0).unflatten(1, (-1, CHUNK)).unbind(2)
    inputs = F.pad(new, padding).unflatten(1, (-1, CHUNK)).unbind(2)
    states, products = [inputs[0]], [decays[0]]
    for each, x in zip(decays[1:], inputs[1:], strict=True):
        states.append(torch.addcmul(x, each, states[-1]))
        products.append(each * products[-1])
    before = [h.expand_as(states[0][:, 0])]
    for product, state in zip(products[-1].unbind(1), states[-1].unbind(1), strict=True):
        before.append(torch.addcmul(state, product, before[-1]))
    earlier = torch.stack(before[:-1], 1)[:, :, None]
    whole = torch.addcmul(torch.stack(states, 2), torch.stack(products, 2), earlier)
    whole = whole.flatten(1, 2)[:, :length]
    return whole, whole[:, -1].clone()


def doubling(decay: Tensor, new: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """After k rounds every position has what 2^k positions add (Hillis and Steele 1986)."""
    states = torch.cat((torch.addcmul(new[:, :1], decay[:, :1], h[:, None]), new[:, 1:]), 1)
    back = 1
    while back < new.shape[1]:
        added = torch.addcmul(states[:, back:], decay[:, back:], states[:, :-back])
        states = torch.cat((states[:, :back], added), 1)
        decay = torch.cat((decay[:, :back], decay[:, back:] * decay[:, :-back]), 1)
        back *= 2
    return states, states[:, -1].clone()


# Segment that backward computes again (None: it keeps all), and how states in it are computed.
WAYS = {
    "plain loop": (None, mamba.scan),
    "chunks": (None, side_by_side),
    "doubling": (None, doubling),
    "loop, again by 32": (32, mamba.scan),
    "loop, again by 64": (64, mamba.scan),
    "loop, again by 128": (128, mamba.scan),
    "chunks, again by 256": (256, side_by_side),
}

if __name__ == "__main__":
    main()
