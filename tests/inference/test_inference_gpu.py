"""Scores on a GPU are those on a CPU."""

from __future__ import annotations

import pytest
from generating_models import text_model
from small_models import DECODERS, small_model

from trivium.inference.score import ScoreItem, score_continuations

pytestmark = pytest.mark.gpu

# Several continuations share the keys and values of their context.
ITEM = ScoreItem([7, 11, 13, 17, 19], [[23], [29, 30, 5], [6, 7]])


def totals(name: str, device: str) -> list[float]:
    scores = score_continuations(text_model(small_model(name).to(device)), [ITEM])
    return [score.total for score in scores[0]]


@pytest.mark.parametrize("name", DECODERS)
def test_continuations_that_share_a_cache_are_scored(name):
    assert totals(name, "cuda") == pytest.approx(totals(name, "cpu"), rel=1e-3)
