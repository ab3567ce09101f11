"""Ways to compute Mamba's state over a row on a CPU: forward and backward pass of one layer.

With `--mixer time-mixing` the sums of RWKV, which are two numbers a channel: there the plain loop
takes all of the formula token by token.

All multiply and add; none divides by a product of decays, which underflows in float32. The plain
loop keeps all states for the backward pass; the others are shown as multiples of its time, the
smallest of all rounds.

python benchmarks/scan.py
python benchmarks/scan.py --rounds 9 --rows 1
python benchmarks/scan.py --mixer time-mixing --lengths 256 1024
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.nn.mixers import mamba, time_mixing
from trivium.nn.sequence_info import SequenceInfo
from trivium.spec import Mamba, TimeMixing

LENGTHS = 256, 1024, 4096
THREADS, CHUNK = 2, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--mixer", choices=("mamba", "time-mixing"), default="mamba")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    part = Mamba(d_inner=2 * options.width, dt_rank=options.width // 16)
    layer, ways = mamba.MambaModule(part, options.width), WAYS
    if options.mixer == "time-mixing":
        layer = time_mixing.TimeMixingModule(TimeMixing(d_inner=options.width), options.width)
        ways = TIME_MIXING_WAYS
    generator = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=options.width**-0.5, generator=generator)
    if options.mixer == "mamba":  # RWKV's matrices start as zeros
        layer.reset_parameters(generator)
    print(
        f"{options.rows} rows, width {options.width}, {THREADS} threads; milliseconds of the loop,"
    )
    print("the time of the others as a multiple of it\n")
    print(f"{'length':>8}{'plain loop':>12}" + "".join(f"{name:>20}" for name in [*ways][1:]))
    for length in options.lengths:
        x = torch.randn(options.rows, length, options.width, generator=generator)
        seconds, gradients = dict.fromkeys(ways, float("inf")), {}
        for _ in range(options.rounds):
            for name, (segment, scan) in ways.items():
                taken, gradients[name] = measure(layer, x, segment or length, scan)
                seconds[name] = min(seconds[name], taken)
        first = gradients["plain loop"]
        for name, other in gradients.items():
            assert (other - first).abs().max() < 1e-3 * first.abs().max(), name
        base = seconds["plain loop"]
        ratios = "".join(f"{seconds[name] / base:>20.2f}" for name in [*ways][1:])
        print(f"{length:>8}{1e3 * base:>12.0f}{ratios}", flush=True)


def measure(layer, x: Tensor, segment: int, scan) -> tuple[float, Tensor]:
    """Seconds of a pass, and the gradient of the decays; without a scan token by token."""
    context = SequenceInfo.of_length(x.shape[1], causal=True)
    layer.zero_grad()

    def at_once(function, *arguments, **_):
        return function(*arguments)

    whole = segment == x.shape[1]
    patches = {"scan": scan, "recompute": at_once if whole else mamba.recompute}
    module, mixer = time_mixing, time_mixing.TimeMixingModule
    if isinstance(layer, mamba.MambaModule):
        module, patches = mamba, {**patches, "SEGMENT": segment}
    wkv = token_by_token if scan is None else mixer._wkv
    with mock.patch.multiple(module, **patches), mock.patch.object(mixer, "_wkv", wkv):
        start = time.perf_counter()
        layer(x, context).square().mean().backward()
        seconds = time.perf_counter() - start
    decay = layer.A_log if module is mamba else layer.time_decay
    assert decay.grad is not None
    return seconds, decay.grad.clone()


def token_by_token(layer, key: Tensor, value: Tensor, *_) -> tuple[Tensor, ...]:
    """RWKV's means with all that they need of a token computed at it."""
    sums, count = torch.zeros_like(key[:, 0]), torch.zeros_like(key[:, 0])
    most, fading, means = torch.full_like(sums, -1e30), -layer.time_decay.exp(), []
    for k, v in zip(key.unbind(1), value.unbind(1), strict=True):
        top = torch.maximum(most, layer.time_first + k)
        old, new = (most - top).exp(), (layer.time_first + k - top).exp()
        means.append((old * sums + new * v) / (old * count + new))
        top = torch.maximum(most + fading, k)
        old, new = (most + fading - top).exp(), (k - top).exp()
        sums, count, most = old * sums + new * v, old * count + new, top
    return torch.stack(means, 1), sums, most


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
# Here all rows are computed again as a whole, or not at all.
TIME_MIXING_WAYS = {
    "plain loop": (None, None),
    "scan": (None, mamba.scan),
    "scan, again": (1, mamba.scan),
    "chunks": (None, side_by_side),
    "doubling": (None, doubling),
}

if __name__ == "__main__":
    main()
