"""Relative scores against the paper's formula in float64, and in rings of a window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import SPECS, random_ids, random_model

from trivium import spec
from trivium.nn import AttentionModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.spec import TransformerXLPositions

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, LENGTH, WIDTH, DIM = 2, 7, 13, 11
POSITIONS = TransformerXLPositions(base=100.0)
PART = spec.Attention(num_heads=6, num_kv_heads=2, head_dim=DIM, bias=False, positions=POSITIONS)


def attention_weights(x, weights, sees):
    """Dai et al. 2019, section 3.3: A_ij with terms (a) to (d), one pair at a time."""
    result = np.zeros((ROWS, 6, LENGTH, LENGTH))
    frequency = 100.0 ** (-2 * np.arange(7) / WIDTH)
    for row, head, i in np.ndindex(ROWS, 6, LENGTH):
        own, group = (slice(DIM * n, DIM * n + DIM) for n in (head, head // 3))
        u, v = weights["positions.content_bias"][own], weights["positions.distance_bias"][own]
        query, seen = weights["query.weight"][own] @ x[row, i], []
        for j in range(LENGTH):
            angle = (i - j) * frequency
            waves = np.concatenate((np.sin(angle), np.cos(angle)))[:WIDTH]
            r = weights["positions.distance"][own] @ waves
            key = weights["key.weight"][group] @ x[row, j]
            score = query @ key + query @ r + u @ key + v @ r
            seen.append(np.exp(score / DIM**0.5) if sees(i, j) else 0.0)
        result[row, head, i] = np.array(seen) / sum(seen)
    return result


def test_scores_are_the_four_terms_of_transformer_xl():
    mixer, x = AttentionModule(PART, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    weights = {name: weight.detach().numpy() for name, weight in mixer.named_parameters()}
    rank = torch.randperm(LENGTH)
    cases = (
        ({}, lambda i, j: True),
        ({"causal": True}, lambda i, j: j <= i),
        ({"causal": True, "prefix": torch.tensor([4, 4])}, lambda i, j: j <= i or j < 4),
        ({"custom": rank <= rank[:, None]}, lambda i, j: rank[j] <= rank[i]),
    )
    for limits, sees in cases:
        expected = attention_weights(x.numpy(), weights, sees)
        for rows in (slice(None), slice(1)):  # few queries take another way
            of_rows = {
                name: each[rows] if name == "prefix" else each for name, each in limits.items()
            }
            found = mixer.probabilities(x[rows], SequenceInfo.of_length(LENGTH, **of_rows))
            np.testing.assert_allclose(found.detach().numpy(), expected[rows], atol=1e-10)


def test_tensor_parallelism_does_not_divide_them():
    decoder = SPECS["llama"].decoder
    assert decoder.sharded_fields
    assert not decoder.with_layers(mixer=PART).sharded_fields


@torch.no_grad()
def test_a_ring_keeps_the_distances_of_a_window():
    part = PART.replace(pattern=spec.Sliding(window=3))
    decoder = SPECS["llama"].decoder.with_layers(mixer=part)
    model, ids = random_model(SPECS["llama"].replace(decoder=decoder)), random_ids(1, 151)
    cache = model.new_cache(1, 151)
    parts = [model(some, cache=cache) for some in ids.split([90, 1, 59, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=1e-9, atol=1e-9)
