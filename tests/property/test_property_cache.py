"""Token by token with a cache, or all at once: the same numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import (
    BOTH,
    DECODERS,
    empty_cache,
    inputs_for,
    memory_of,
    random_ids,
    small_model,
)

from trivium.models.transformer import Memory

ROWS = 3
quick = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@torch.no_grad()
def step_by_step(model, ids, pieces, cache, memory):
    """Logits of `ids`, given to the decoder in pieces."""
    found = [
        model.logits(model.decode(piece, memory=memory, cache=cache))
        for piece in ids.split(pieces, 1)
    ]
    return torch.cat(found, 1)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@quick
@given(pieces=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_cached_equals_uncached(name, context, pieces):
    model, total = small_model(name), sum(pieces)
    ids = random_ids(ROWS, total)
    inputs = inputs_for(name, ids)
    with context():
        expected = model.logits(model(**inputs)).detach()
    cache = empty_cache(model, ROWS, total)
    with torch.no_grad():
        found = step_by_step(model, ids, pieces, cache, memory_of(model, inputs))
    assert cache.length == total
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "llama31", "mistral", "alibi", "opt", "sliding"])
def test_cached_equals_uncached_with_padding_on_the_left(name):
    """Prompts of several lengths, ending together, as batched generation has them."""
    model, lengths, prompt, total = small_model(name), [7, 4, 1], 7, 12
    ids = random_ids(3, total)
    real = torch.arange(total) >= prompt - torch.tensor(lengths)[:, None]
    positions = (real.cumsum(1) - 1).clamp(min=0)
    cache = empty_cache(model, 3, total)
    with torch.no_grad():
        found = []
        for start, stop in [(0, prompt), *((t, t + 1) for t in range(prompt, total))]:
            hidden = model(
                ids[:, start:stop],
                attention_mask=real[:, :stop],
                position_ids=positions[:, start:stop],
                cache=cache,
            )
            found.append(model.logits(hidden))
        for row, length in enumerate(lengths):
            skipped = prompt - length
            alone = model.logits(model(ids[row : row + 1, skipped:]))[0]
            torch.testing.assert_close(
                torch.cat(found, 1)[row, skipped:], alone, rtol=1e-4, atol=2e-5
            )


@pytest.mark.parametrize("name", BOTH)
def test_cached_equals_uncached_where_sources_are_padded(name):
    model, ids, lengths = small_model(name), random_ids(ROWS, 7), [11, 5, 1]
    real = torch.arange(11) < torch.tensor(lengths)[:, None]
    inputs = {**inputs_for(name, ids), "attention_mask": real.long()}
    with torch.no_grad():
        expected = model.logits(model(**inputs))
        memory = memory_of(model, inputs)
        found = step_by_step(model, ids, [3, 1, 1, 2], empty_cache(model, ROWS, 7), memory)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
        for row, length in enumerate(lengths):
            source = inputs["input_ids"][row : row + 1, :length]
            short = Memory(model.encode(source))
            alone = step_by_step(model, ids[row : row + 1], [2, 5], empty_cache(model, 1, 7), short)
            torch.testing.assert_close(alone[0], expected[row], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", BOTH)
def test_what_the_encoder_read_is_projected_once(name):
    model, ids = small_model(name), random_ids(ROWS, 5)
    calls = []
    for layer in model.decoder.layers:
        layer.cross_attention.key.register_forward_hook(lambda *_: calls.append(1))
    memory = memory_of(model, inputs_for(name, ids))
    step_by_step(model, ids, 1, empty_cache(model, ROWS, 5), memory)
    assert len(calls) == len(model.decoder.layers)


@pytest.mark.parametrize("name", DECODERS)
def test_reordered_rows_go_on_as_if_they_had_been_there(name):
    """As beam search needs it: rows dropped, doubled and swapped, with their sources."""
    model, ids, kept = small_model(name), random_ids(ROWS, 7), torch.tensor([2, 2, 0])
    inputs = inputs_for(name, ids)
    with torch.no_grad():
        expected = model.logits(model(**{key: value[kept] for key, value in inputs.items()}))
        memory, cache = memory_of(model, inputs), empty_cache(model, ROWS, 7)
        step_by_step(model, ids[:, :4], 2, cache, memory)
        cache.reorder(kept)
        found = step_by_step(model, ids[kept, 4:], 1, cache, memory)
    torch.testing.assert_close(found, expected[:, 4:], rtol=1e-4, atol=2e-5)
