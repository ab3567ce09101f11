"""What slots hold after any steps, against lists of tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from trivium.errors import SpecError
from trivium.nn.state import Cache, KVCache, RollingKVCache, State

SLOTS, LENGTH, WINDOW = 4, 41, 5
CPU = torch.device("cpu")
LIKE = torch.empty(0, dtype=torch.float64)


def read(cache: Cache, held: list[list[int]], slots: list[int], new: list[list[int]], width: int):
    """Append tokens to slots, padded to a width, and compare what every one of them can see."""
    (state,) = cache.states
    assert isinstance(state, KVCache | RollingKVCache)
    ids = torch.full((len(new), 1, width, 1), -7, dtype=torch.float64)
    for row, tokens in enumerate(new):
        ids[row, 0, : len(tokens), 0] = torch.tensor(tokens, dtype=torch.float64)
    lengths = [len(tokens) for tokens in new]
    cache_slice = cache.start_pass(
        len(slots),
        width,
        torch.tensor(slots),
        None if min(lengths) == width else torch.tensor(lengths),
    )
    columns = state.columns(cache_slice, cache_slice.columns(CPU)).expand(len(slots), -1).tolist()
    keys, values = state.append(cache_slice, ids, -ids)
    cache.end_pass(cache_slice)
    assert torch.equal(keys, -values)
    for row, (slot, tokens) in enumerate(zip(slots, new, strict=True)):
        first = len(held[slot])
        held[slot].extend(tokens)
        seen = sorted(zip(columns[row], keys[row, 0, :, 0].tolist(), strict=True))
        for at in range(first, len(held[slot])):
            start = max(0, at - WINDOW)
            near = [(column, key) for column, key in seen if start <= column <= at]
            assert near == [*enumerate(held[slot][start : at + 1], start)], (slot, at)


@pytest.mark.parametrize(("kind", "length"), [(RollingKVCache, WINDOW), (KVCache, LENGTH)])
def test_slots_hold_their_texts_after_any_steps(kind, length, monkeypatch):
    """Rows are appended in any order and width, taken back, copied and freed."""
    monkeypatch.setattr(RollingKVCache, "SPARE", 3)
    rng, tokens, refused = np.random.default_rng(0), itertools.count(1), 0
    state = kind(SLOTS, length, 1, 1, LIKE)
    cache = Cache(SLOTS, LENGTH, [state], device=CPU)
    assert cache.max_crop == (3 if isinstance(state, RollingKVCache) else LENGTH)
    held: list[list[int]] = [[] for _ in range(SLOTS)]
    longest = [0] * SLOTS
    for _ in range(600):
        slot, other = (int(each) for each in rng.choice(SLOTS, 2, replace=False))
        step = rng.random()
        if step < 0.6:
            slots = [int(each) for each in rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)]]
            width = int(rng.choice((1, 1, 2, 4, 11)))
            new = [[next(tokens) for _ in range(rng.integers(width + 1))] for _ in slots]
            if rng.random() < 0.5:
                new = [[next(tokens) for _ in range(width)] for _ in slots]
            for each in (each for each in slots if len(held[each]) + width > LENGTH):
                cache.free(each)
                held[each], longest[each] = [], 0
            read(cache, held, slots, new, width)
            longest = [max(most, len(text)) for most, text in zip(longest, held)]
        elif step < 0.8:
            length = max(0, len(held[slot]) - int(rng.integers(5)))
            back = torch.tensor([slot]), torch.tensor([length])
            if longest[slot] - length > cache.max_crop:
                refused += 1
                with pytest.raises(SpecError, match=r"cannot be rolled back .* at most by 3"):
                    cache.crop(*back)
            else:
                cache.crop(*back)
                held[slot] = held[slot][:length]
        elif step < 0.95:
            cache.copy(torch.tensor([slot]), torch.tensor([other]))
            held[other], longest[other] = held[slot][:], longest[slot]
        else:
            cache.free(slot)
            held[slot], longest[slot] = [], 0
        assert cache.lengths.tolist() == [len(text) for text in held]
    assert bool(refused) == (kind is RollingKVCache)


def test_a_state_that_is_a_sum_cannot_be_taken_back():
    cache = Cache(3, 17, [State(torch.ones(3, 2))], device=CPU)
    slots = torch.tensor([2, 0])
    cache.end_pass(cache.start_pass(2, 5, slots, torch.tensor([5, 3])))
    cache.crop(slots, torch.tensor([5, 3]))
    with pytest.raises(SpecError, match="cannot be rolled back by 3 tokens, at most by 0"):
        cache.crop(slots, torch.tensor([5, 0]))
    with pytest.raises(SpecError, match=r"hold \[5, 3\] tokens: .* cropped to \[5, 4\]"):
        cache.crop(slots, torch.tensor([5, 4]))
    with pytest.raises(SpecError, match="18 tokens, but slot_length is 17"):
        cache.start_pass(2, 13, slots, None)
    cache.free(2)
    assert cache.states[0].tensors[0].tolist() == [[1, 1], [1, 1], [0, 0]]


def test_a_slot_forgets_its_source():
    """Where a shorter one takes its place, and where the slot is freed."""
    cache = Cache(
        2, 3, [State(torch.zeros(2, 1))], device=CPU, projections=[lambda x: (x[None], x[None])]
    )
    for length in (5, 2):
        cache.set_encoder_output(torch.tensor([1]), torch.ones(1, length, 1))
        assert cache.source_mask is not None
        assert cache.source_mask.sum(1).tolist() == [0, length]
    cache.free(1)
    assert not cache.source_mask.any()
