"""FlexAttention computes the formula of attention, with documents, a window, a bias and a cap."""

from __future__ import annotations

import pytest
import torch

from trivium import spec
from trivium.nn import SequenceInfo
from trivium.nn.attend import attend
from trivium.nn.flex import FlexMask

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
LENGTH = 131  # more than one block of 128 keys, and no multiple of it


def formula(query, key, value, allowed, bias, cap, scale):
    """The definition of attention, [B, N, T, V]; 0 for a query that attends to no key."""
    key, value = (each.repeat_interleave(2, 1) for each in (key, value))
    scores = query @ key.transpose(-1, -2) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    weights = (scores + bias).exp() * allowed
    return weights @ value / weights.sum(-1, keepdim=True).clamp(min=1e-300)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 13])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_attention_is_its_formula(causal, window, cap, rows):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    query, key = normal(rows, 4, LENGTH, 5), normal(rows, 2, LENGTH, 5)
    value, bias = normal(rows, 2, LENGTH, 7), normal(1, 4, LENGTH, LENGTH)
    columns = torch.arange(LENGTH)
    documents = (columns // 40 + torch.arange(rows)[:, None]) % 4
    is_token = columns < torch.tensor([LENGTH, 50, 90])[:rows, None]
    sequence = SequenceInfo.of_length(LENGTH, causal=causal, documents=documents, is_token=is_token)
    pattern = window and spec.Sliding(window=window)
    mask = FlexMask(sequence, sequence, pattern, lambda queries, keys: bias)
    distance = columns[:, None] - columns
    allowed = is_token[:, None] & (documents[:, :, None] == documents[:, None])
    if causal:
        allowed = allowed & (distance >= 0)
    if window:
        allowed = allowed & (distance.abs() <= window)
    actual = attend(query, key, value, mask, scale=0.3, soft_cap=cap)
    expected = formula(query, key, value, allowed[:, None], bias, cap, 0.3)
    torch.testing.assert_close(actual, expected)


def test_a_plain_mask_has_no_blocks_to_skip():
    sequence = SequenceInfo.of_length(LENGTH)
    assert FlexMask(sequence, sequence).block_mask is None
    query, key = torch.randn(2, 3, LENGTH, 5), torch.randn(2, 3, LENGTH, 5)
    expected = (query @ key.transpose(-1, -2) * 5**-0.5).softmax(-1) @ key
    actual = attend(query, key, key, FlexMask(sequence, sequence))
    torch.testing.assert_close(actual, expected)


def test_blocks_outside_of_documents_are_skipped():
    documents = torch.arange(512)[None] // 128
    sequence = SequenceInfo.of_length(512, causal=True, documents=documents)
    mask = FlexMask(sequence, sequence).block_mask
    assert mask is not None
    assert mask.to_dense().squeeze().tolist() == torch.eye(4, dtype=torch.int).tolist()
