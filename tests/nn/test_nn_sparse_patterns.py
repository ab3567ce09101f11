"""The patterns of Sparse Transformers against the sets of the paper, one position at a time."""

from __future__ import annotations

import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.mask import attention_mask
from trivium.nn.sequence_info import SequenceInfo
from trivium.spec import Fixed, PerHead, Strided

LENGTH, STRIDE, SUMMARY = 17, 5, 2


def paper_sets(i):
    """Child et al. 2019, section 4.3, positions from 0: strided A1, A2, then fixed A1, A2."""
    return (
        set(range(max(0, i - STRIDE), i + 1)),
        {j for j in range(i + 1) if (i - j) % STRIDE == 0},
        {j for j in range(i + 1) if j // STRIDE == i // STRIDE},
        {j for j in range(i + 1) if j % STRIDE in range(STRIDE - SUMMARY, STRIDE)},
    )


def test_every_head_sees_its_set_of_the_paper():
    fixed = {"stride": STRIDE, "num_summary": SUMMARY}
    heads = (
        Strided(stride=STRIDE, visible="near"),
        Strided(stride=STRIDE, visible="far"),
        Fixed(**fixed, visible="near"),
        Fixed(**fixed, visible="far"),
        Strided(stride=STRIDE),
        Fixed(**fixed),
        spec.Sliding(window=3),
    )
    sequence = SequenceInfo.of_length(LENGTH, causal=True)
    mask = attention_mask(sequence, sequence, PerHead(patterns=heads))
    assert mask is not None
    assert mask.shape == (1, len(heads), LENGTH, LENGTH)
    for i in range(LENGTH):
        a, b, c, d = paper_sets(i)
        expected = a, b, c, d, a | b, c | d, set(range(max(0, i - 3), i + 1))
        assert tuple(set(head[i].nonzero()[:, 0].tolist()) for head in mask[0]) == expected
    two_steps = (mask[0, 0].float() @ mask[0, 1].float()) > 0
    assert torch.equal(two_steps, torch.ones(LENGTH, LENGTH).tril().bool())


def test_patterns_that_do_not_fit_are_refused():
    with pytest.raises(SpecError, match="one pattern for every head"):
        spec.Attention(num_heads=3, head_dim=2, pattern=PerHead(patterns=[Strided(stride=2)] * 2))
    with pytest.raises(SpecError, match="give fewer"):
        Fixed(stride=2, num_summary=3)
