"""The cache of keys and values."""

from __future__ import annotations

import pytest
import torch

from trivium import spec
from trivium.nn.cache import Cache
from trivium.presets import presets


def make(batch=3, length=7):
    stack = presets["llama-tiny"].decoder
    assert isinstance(stack, spec.Stack)
    return Cache(stack, batch, length, dtype=torch.float32, device=torch.device("cpu"))


def test_room_is_made_for_every_layer_and_key_value_head():
    cache = make()
    assert len(cache.layers) == 2
    assert cache.layers[0].keys.shape == cache.layers[1].values.shape == (3, 2, 7, 32)


def test_extend_writes_in_place_and_returns_what_is_known():
    layer = make().layers[0]
    first, second = torch.randn(3, 2, 4, 32), torch.randn(3, 2, 2, 32)
    keys, values, _ = layer.extend(0, first, -first)
    assert torch.equal(keys, first)
    keys, values, _ = layer.extend(4, second, -second)
    assert torch.equal(keys, torch.cat((first, second), dim=2))
    assert torch.equal(values, -keys)


def filled(batch: int, length: int):
    cache = make(batch)
    for layer in cache.layers:
        layer.extend(0, *torch.randn(2, batch, 2, length, 32).unbind(0))
    cache.length = length
    return cache


@pytest.mark.parametrize("rows", [[2, 0, 0, 1], [1, 2, 0], [2, 2], [0, 1, 2]])
def test_reorder_keeps_the_given_rows(rows):
    cache = filled(3, 5)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    cache.reorder(torch.tensor(rows))
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys[:, :, :5], keys[rows][:, :, :5])
        assert torch.equal(layer.values[:, :, :5], values[rows][:, :, :5])
        assert layer.values.shape == (len(rows), 2, 7, 32)
        more = torch.randn(2, len(rows), 2, 1, 32)
        found, _, _ = layer.extend(5, *more)
        assert torch.equal(found, torch.cat((keys[rows][:, :, :5], more[0]), 2))


def recalled(layer, rows: int) -> list[torch.Tensor]:
    """Keys and values of the memory for every row, whether or not rows that share it are one."""
    parts = layer.recall(lambda: pytest.fail("projected again"))
    return [part.repeat_interleave(rows // len(part), 0) for part in parts]


def test_rows_of_one_text_share_what_its_encoder_read():
    """Through any reordering every row recalls the memory of the row it came from."""
    cache = filled(3, 2)
    memory = torch.randn(2, 3, 2, 11, 32)
    for layer in cache.layers:
        layer.recall(lambda: tuple(memory))
    origin = torch.arange(3)
    steps = (
        ([0, 0, 1, 1, 2, 2], 3),  # two beams a text
        ([1, 0, 3, 3, 4, 5], 3),
        ([1, 1, 4, 5], 2),  # the second text is finished
        ([3, 2], 1),
        ([0, 1, 0], 1),  # what one text read
    )
    for rows, kept in steps:
        cache.reorder(torch.tensor(rows))
        origin = origin[rows]
        for layer in cache.layers:
            assert len(layer.memory[0]) == kept
            for part, read in zip(recalled(layer, len(rows)), memory, strict=True):
                assert torch.equal(part, read[origin])


def test_rows_of_texts_in_uneven_numbers_recall_their_own():
    cache = filled(3, 2)
    memory = torch.randn(2, 3, 2, 11, 32)
    cache.layers[0].recall(lambda: tuple(memory))
    cache.reorder(torch.tensor([2, 0, 0, 1]))
    assert torch.equal(recalled(cache.layers[0], 4)[0], memory[0][[2, 0, 0, 1]])
