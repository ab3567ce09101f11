"""The cache of keys and values."""

from __future__ import annotations

import torch

from trivium import spec
from trivium.nn.cache import Cache
from trivium.presets import presets


def make(batch=3, length=7):
    stack = presets["llama-tiny"].decoder
    assert isinstance(stack, spec.Stack)
    return Cache(stack, batch, length, dtype=torch.float32, device="cpu")


def test_room_is_made_for_every_layer_and_key_value_head():
    cache = make()
    assert len(cache.layers) == 2
    assert cache.layers[0].keys.shape == cache.layers[1].values.shape == (3, 2, 7, 32)


def test_extend_writes_in_place_and_returns_what_is_known():
    layer = make().layers[0]
    first, second = torch.randn(3, 2, 4, 32), torch.randn(3, 2, 2, 32)
    keys, values = layer.extend(0, first, -first)
    assert torch.equal(keys, first)
    keys, values = layer.extend(4, second, -second)
    assert torch.equal(keys, torch.cat((first, second), dim=2))
    assert torch.equal(values, -keys)


def test_reorder_keeps_the_given_rows():
    cache = make()
    for layer in cache.layers:
        layer.extend(0, *torch.randn(2, 3, 2, 5, 32).unbind(0))
    before = [layer.keys.clone() for layer in cache.layers]
    cache.reorder(torch.tensor([2, 0, 0, 1]))
    for layer, keys in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys[[2, 0, 0, 1]])
        assert layer.values.shape == (4, 2, 7, 32)
