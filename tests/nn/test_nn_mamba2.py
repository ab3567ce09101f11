"""Mamba 2's mixer: the recurrence of the paper over chunks, documents, padding and decoding."""

from __future__ import annotations

import pytest
import torch
from double import double_precision, relative_error
from torch.nn import functional as F

from trivium.nn import SequenceInfo
from trivium.nn.mixers import mamba2
from trivium.spec import Mamba2

WIDTH, LENGTH = 7, 23
VARIANTS = [
    {},
    {"num_groups": 3, "bias": True, "conv_bias": False, "d_conv": 3, "activation": "gelu"},
    {"num_groups": 2, "dt_min": 0.4, "dt_max": 0.9, "norm_eps": 0.1},
]


def mixer(**options) -> mamba2.Mamba2Module:
    layer = Mamba2(num_heads=6, head_dim=5, d_state=3, **options).build(WIDTH)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    return layer


def one_by_one(layer: mamba2.Mamba2Module, x: torch.Tensor) -> torch.Tensor:
    """Dao and Gu 2024, equation 1 with one decay per head, of one text [T, D], step after step."""
    part, heads = layer.part, layer.part.num_heads
    padded = F.pad(layer.input(x), (0, 0, part.d_conv - 1, 0)).T[None]
    mixed = F.conv1d(padded, layer.conv.weight, layer.conv.bias, groups=part.conv_width)[0].T
    shared = part.num_groups * part.d_state
    u, B, C = layer.activation(mixed).split([part.d_inner, shared, shared], -1)
    delta = F.softplus(layer.dt(x) + layer.dt_bias).clamp(part.dt_min, part.dt_max)
    rows = []
    states = [torch.zeros(part.head_dim, part.d_state) for _ in range(heads)]
    for t in range(len(x)):
        outputs = []
        for n in range(heads):
            group = n * part.num_groups // heads
            b, c = (each[t].view(part.num_groups, -1)[group] for each in (B, C))
            head = u[t].view(heads, -1)[n]
            decay = (-delta[t, n] * layer.A_log[n].exp()).exp()
            states[n] = decay * states[n] + delta[t, n] * torch.outer(head, b)
            outputs.append(states[n] @ c + layer.D[n] * head)
        y = (torch.cat(outputs) * F.silu(layer.gate(x[t]))).view(part.num_groups, -1)
        y = y / (y.square().mean(-1, keepdim=True) + part.norm_eps).sqrt()
        rows.append(y.flatten() * layer.norm)
    return layer.output(torch.stack(rows))


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("chunk", [1, 4, 64])
@double_precision()
def test_chunks_equal_the_recurrence_over_documents_and_padding(options, chunk, monkeypatch):
    monkeypatch.setattr(mamba2, "CHUNK", chunk)
    torch.manual_seed(0)
    layer, x = mixer(**options), torch.randn(2, LENGTH, WIDTH)
    lengths = [9, 1, 2, 11]
    documents = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None].expand(2, -1)
    packed = layer(x, SequenceInfo.of_length(LENGTH, causal=True, documents=documents))
    real = torch.arange(LENGTH).expand(2, -1) >= torch.tensor([[6], [0]])
    padded = layer(x, SequenceInfo.of_length(LENGTH, causal=True, is_token=real))
    for row in range(2):
        alone = torch.cat([one_by_one(layer, part) for part in x[row].split(lengths)])
        assert relative_error(packed[row], alone) < 1e-12
    for row, first in enumerate((6, 0)):
        assert relative_error(padded[row, first:], one_by_one(layer, x[row, first:])) < 1e-12


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(options) or "plain")
@double_precision()
def test_gradients_equal_those_of_the_recurrence(options, monkeypatch):
    monkeypatch.setattr(mamba2, "CHUNK", 4)
    torch.manual_seed(0)
    layer, x = mixer(**options), torch.randn(1, LENGTH, WIDTH, requires_grad=True)
    gradients = [
        torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        for y in (layer(x, SequenceInfo.of_length(LENGTH, causal=True))[0], one_by_one(layer, x[0]))
    ]
    for mine, theirs in zip(*gradients, strict=True):
        assert relative_error(mine, theirs) < 1e-10


def test_decays_to_nothing_have_gradients_in_float32():
    """A state that is forgotten at once: exp(-600) is 0, and a quotient of such would be none."""
    torch.manual_seed(0)
    layer, x = mixer(), 100.0 * torch.randn(1, 150, WIDTH)
    layer(x, SequenceInfo.of_length(150, causal=True)).square().mean().backward()
    for name, weight in layer.named_parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all(), name
