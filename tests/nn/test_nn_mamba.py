"""Mamba's mixer: the paper's formula over several segments, its start, what does not decay."""

from __future__ import annotations

import torch
from double import double_precision, relative_error
from torch.nn import functional as F

from trivium.models import build
from trivium.nn import SequenceInfo
from trivium.nn.mixers import mamba
from trivium.presets import presets
from trivium.spec import Mamba
from trivium.train.optimizers.adamw import AdamW
from trivium.train.optimizers.muon import Muon

INNER, STATES, RANK, WIDTH, LENGTH = 5, 3, 2, 7, 23


def mixer() -> mamba.MambaModule:
    layer = mamba.MambaModule(Mamba(d_inner=INNER, dt_rank=RANK, d_state=STATES), WIDTH)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    return layer


def one_by_one(layer: mamba.MambaModule, x: torch.Tensor) -> torch.Tensor:
    """Gu and Dao 2023, algorithm 2, of one text [T, D], step after step."""
    inputs, gate = layer.input(x), layer.gate(x)
    padded = F.pad(inputs, (0, 0, 3, 0))
    u = F.silu(F.conv1d(padded.T[None], layer.conv.weight, layer.conv.bias, groups=INNER)[0].T)
    dt, B, C = layer.x_proj(u).split([RANK, STATES, STATES], -1)
    delta, h, outputs = F.softplus(layer.dt_proj(dt)), torch.zeros(INNER, STATES), []
    for t in range(len(x)):
        decay = (delta[t, :, None] * -layer.A_log.exp()).exp()
        h = decay * h + delta[t, :, None] * B[t] * u[t, :, None]
        outputs.append(h @ C[t] + layer.D * u[t])
    return layer.output(torch.stack(outputs) * F.silu(gate))


@double_precision()
def test_the_formula_of_the_paper_over_segments_documents_and_padding(monkeypatch):
    monkeypatch.setattr(mamba, "SEGMENT", 4)
    torch.manual_seed(0)
    layer, x = mixer(), torch.randn(2, LENGTH, WIDTH)
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
    gradients = [
        torch.autograd.grad(y.square().sum(), [*layer.parameters()])
        for y in (
            layer(x[:1], SequenceInfo.of_length(LENGTH, causal=True))[0],
            one_by_one(layer, x[0]),
        )
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


def test_decays_and_skips_start_as_published_and_are_no_matrices():
    model = build(presets["mamba-tiny"].replace(vocab_size=11), seed=0)
    first = model.decoder.layers[0].mixer
    assert torch.allclose(first.A_log.exp(), torch.arange(1.0, 17.0))
    assert (first.D == 1.0).all()
    steps = F.softplus(first.dt_proj.bias)
    assert 0.001 <= steps.min() < 0.003
    assert 0.03 < steps.max() <= 0.1001
    decays = {id(layer.mixer.A_log) for layer in model.decoder.layers}
    for optimizer in (AdamW(lr=1e-3), Muon(lr=1e-3, embedding_lr=1e-2)):
        groups = [group for each in optimizer.build(model) for group in each.param_groups]
        [of_decays] = [g for g in groups if decays & {id(weight) for weight in g["params"]}]
        assert of_decays["weight_decay"] == 0.0
