"""Masks against what their words say, one pair of positions at a time."""

from __future__ import annotations

import pytest
import torch

from trivium import spec
from trivium.models import build
from trivium.nn.mask import Mask
from trivium.presets import presets

CPU = torch.device("cpu")
LENGTH, WINDOW = 11, 3
REAL = torch.arange(LENGTH) < torch.tensor([[11], [7], [1]])
DOCUMENTS = torch.tensor(
    [
        [1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5],
        [1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
)


PREFIX = torch.tensor([6, 1, 11])


def brute_force(*, causal, padding, documents, window, start, queries, prefix=None):
    keys = start + queries
    allowed = torch.ones(3, queries, keys, dtype=torch.bool)
    for row in range(3):
        for query in range(queries):
            for key in range(keys):
                place = start + query
                sees = not causal or key <= place
                if prefix is not None:
                    sees = sees or key < int(prefix[row])
                if window:
                    sees = sees and abs(place - key) <= window
                if documents is not None:
                    sees = sees and bool(documents[row, place] == documents[row, key])
                if padding is not None:
                    sees = sees and bool(padding[row, key])
                allowed[row, query, key] = sees
    return allowed


@pytest.mark.parametrize("start", [0, 4, 10])
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("limits", ["none", "padding", "documents", "both"])
@pytest.mark.parametrize("causal", [True, False])
def test_mask_says_what_it_means(causal, limits, window, start):
    padding = REAL if limits in ("padding", "both") else None
    documents = DOCUMENTS if limits in ("documents", "both") else None
    mask = Mask(causal=causal, padding=padding, documents=documents, start=start)
    pattern = spec.Sliding(window=window) if window else spec.Full()
    queries = LENGTH - start
    found = mask.allowed(pattern, queries, LENGTH, CPU)
    expected = brute_force(
        causal=causal,
        padding=padding,
        documents=documents,
        window=window,
        start=start,
        queries=queries,
    )
    if found is None:
        assert expected.all()
        return
    assert found.shape[1] == 1
    found = found[:, 0].expand(3, queries, LENGTH)
    if padding is None:
        assert torch.equal(found, expected)
        return
    # What a padded query sees is nobody's business, but it must see something.
    real_queries = padding[:, start:, None].expand_as(found)
    assert torch.equal(found[real_queries], expected[real_queries])
    if causal:
        assert found.any(-1).all()


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("documents", [None, DOCUMENTS])
def test_a_prefix_is_seen_by_all(documents, window, start):
    mask = Mask(causal=True, documents=documents, prefix=PREFIX, start=start)
    pattern = spec.Sliding(window=window) if window else spec.Full()
    expected = brute_force(
        causal=True,
        padding=None,
        documents=documents,
        window=window,
        start=start,
        queries=LENGTH - start,
        prefix=PREFIX,
    )
    found = mask.allowed(pattern, LENGTH - start, LENGTH, CPU)
    assert found is not None
    assert torch.equal(found[:, 0], expected)
    assert not mask.is_plain_causal(spec.Full(), 5)


def test_plain_causality_needs_no_tensor():
    assert Mask(causal=True).is_plain_causal(spec.Full(), 5)
    assert not Mask(causal=True).is_plain_causal(spec.Sliding(window=2), 5)
    assert not Mask(causal=True, start=2).is_plain_causal(spec.Full(), 5)
    assert not Mask(causal=True, padding=REAL).is_plain_causal(spec.Full(), 5)
    assert not Mask(causal=True, documents=DOCUMENTS).is_plain_causal(spec.Full(), 5)
    assert not Mask(causal=False).is_plain_causal(spec.Full(), 5)
    assert Mask(causal=False).allowed(spec.Full(), 5, 5, CPU) is None
    assert Mask(causal=True, start=6).allowed(spec.Full(), 1, 7, CPU) is None


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", ["bert-tiny", "modernbert-tiny", "gpt2-tiny"])
def test_a_row_of_padding_alone_stays_finite(name, context):
    """Such a row fills up the last batch; NaN there would spoil the gradients of all rows."""
    model = build(presets[name].replace(vocab_size=31))
    ids, mask = torch.ones(2, 5, dtype=torch.int64), torch.tensor([[1] * 5, [0] * 5])
    with context():
        assert model(ids, attention_mask=mask).isfinite().all()
