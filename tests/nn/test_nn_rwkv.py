"""RWKV: the paper's formula, keys of any size, and networks that read the token before."""

from __future__ import annotations

import pytest
import torch
from double import FLOAT32, double_precision, relative_error
from small_models import SPECS, random_ids, random_model
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.models import build
from trivium.nn import SequenceInfo
from trivium.nn.feed_forwards.channel_mixing import ChannelMixingNetwork
from trivium.nn.mixers.time_mixing import TimeMixingModule
from trivium.nn.state import CacheSlice
from trivium.presets import presets
from trivium.spec import ChannelMixing, TimeMixing

INNER, WIDTH, LENGTH = 5, 7, 23


def mixer() -> TimeMixingModule:
    layer = TimeMixingModule(TimeMixing(d_inner=INNER), WIDTH)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    return layer


def by_sums(layer: TimeMixingModule, x: torch.Tensor) -> torch.Tensor:
    """Peng et al. 2023, section 3.1, of one text [T, D]: a sum over all earlier tokens."""
    before = F.pad(x, (0, 0, 1, -1))
    key, value, receptance = (
        matrix(mix * x + (1 - mix) * before)
        for matrix, mix in (
            (layer.key, layer.mix_key),
            (layer.value, layer.mix_value),
            (layer.receptance, layer.mix_receptance),
        )
    )
    means = []
    for t in range(len(x)):
        distance = t - 1 - torch.arange(t)[:, None]
        exponents = -distance * layer.time_decay.exp() + key[:t]
        weights = torch.cat((exponents, layer.time_first + key[t : t + 1])).exp()
        means.append((weights * value[: t + 1]).sum(0) / weights.sum(0))
    return layer.output(receptance.sigmoid() * torch.stack(means))


@double_precision()
def test_the_formula_of_the_paper_over_documents_and_padding():
    torch.manual_seed(0)
    layer, x = mixer(), torch.randn(2, LENGTH, WIDTH)
    lengths = [9, 1, 2, 11]
    documents = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None].expand(2, -1)
    packed = layer(x, SequenceInfo.of_length(LENGTH, causal=True, documents=documents))
    real = torch.arange(LENGTH).expand(2, -1) >= torch.tensor([[6], [0]])
    padded = layer(x, SequenceInfo.of_length(LENGTH, causal=True, is_token=real))
    for row in range(2):
        alone = torch.cat([by_sums(layer, part) for part in x[row].split(lengths)])
        assert relative_error(packed[row], alone) < 1e-12
    for row, first in enumerate((6, 0)):
        assert relative_error(padded[row, first:], by_sums(layer, x[row, first:])) < 1e-12
    assert padded.isfinite().all()
    gradients = [
        torch.autograd.grad(y.square().sum(), [*layer.parameters()])
        for y in (
            layer(x[:1], SequenceInfo.of_length(LENGTH, causal=True))[0],
            by_sums(layer, x[0]),
        )
    ]
    for mine, theirs in zip(*gradients, strict=True):
        assert relative_error(mine, theirs) < 1e-10


def test_keys_of_any_size_in_float32():
    """exp(1000) is no number, and exp(-1000) nothing to divide by."""
    torch.manual_seed(0)
    layer, x = mixer(), 300.0 * torch.randn(1, LENGTH, WIDTH)
    y = layer(x, SequenceInfo.of_length(LENGTH, causal=True))
    y.square().mean().backward()
    for name, weight in layer.named_parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all(), name
    state, cache_slice = (
        layer.new_state(1, LENGTH, x),
        CacheSlice(slice(1), 0, LENGTH, None, LENGTH),
    )
    from_state = layer(
        x, SequenceInfo.of_length(LENGTH, causal=True, cache_slice=cache_slice), state
    )
    assert relative_error(from_state, y) < FLOAT32


@double_precision()
def test_a_network_that_reads_the_token_before_in_parallel_blocks():
    torch.manual_seed(0)
    described = SPECS["gpt-neox"]
    assert described.decoder is not None
    decoder = described.decoder.with_layers(feed_forward=ChannelMixing(d_ff=29))
    model, ids = random_model(described.replace(decoder=decoder)), random_ids(2, 11)
    whole, gather_positions = model(ids), torch.tensor([3, 10, 11, 20])
    torch.testing.assert_close(
        model(ids, gather_positions=gather_positions), whole.flatten(0, 1)[gather_positions]
    )
    cache = model.new_cache(2, 11)
    steps = [model(part, cache=cache) for part in ids.split([4, 1, 6], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    assert cache.max_crop == 0
    # By itself, without a context.
    network, x = ChannelMixingNetwork(ChannelMixing(d_ff=5), WIDTH), torch.randn(2, 4, WIDTH)
    assert network(x)[0].shape == x.shape
    with pytest.raises(SpecError, match="takes no order"):
        network(x, SequenceInfo.of_length(4, num_keys=3))


def test_rwkv_starts_as_published():
    """Blocks add nothing at first; rates are between exp(-5) and exp(3)."""
    model = build(presets["rwkv-tiny"].replace(vocab_size=11), seed=0)
    first, ids = model.decoder.layers[0], random_ids(1, 3) % 11
    entered = model.decoder.embedding(model.tokens(ids), torch.arange(3)[None])
    torch.testing.assert_close(model(ids), model.decoder.norm(entered))
    assert (first.mixer.time_decay[0], first.mixer.time_decay[-1]) == (-5.0, 3.0)
    assert 0 < first.mixer.mix_key[1] < first.mixer.mix_key[-1] < 1
    assert first.mixer.value.weight.std() > 0
    with pytest.raises(SpecError, match="is causal only"):
        presets["bert-tiny"].replace(encoder=presets["rwkv-tiny"].decoder)
