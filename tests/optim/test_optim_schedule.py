"""Learning-rate schedules against their formulas."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.optim.schedule import Kind, learning_rate_factor

KINDS = get_args(Kind)
STEPS, WARMUP, FINAL, DECAY = 211, 17, 0.1, 0.3


def expected(kind, step):
    done = step / STEPS
    fall = {
        "constant": 1.0,
        "linear": 1 - (1 - FINAL) * done,
        "cosine": FINAL + (1 - FINAL) * (1 + math.cos(math.pi * done)) / 2,
        "inverse-sqrt": min(1.0, math.sqrt(WARMUP / (step + 1))),
        "stable-decay": 1.0 if done <= 1 - DECAY else FINAL + (1 - FINAL) * (1 - done) / DECAY,
    }[kind]
    return min(1.0, (step + 1) / WARMUP) * fall


def factor(kind, step, **changes):
    options = {"warmup": WARMUP, "decay": DECAY, "final": FINAL} | changes
    return learning_rate_factor(kind, step, step / STEPS, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_formula_at_every_step(kind):
    for step in range(STEPS + 1):
        assert factor(kind, step) == pytest.approx(expected(kind, step), rel=1e-12), step


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_rises_and_then_the_rate_never_does(kind):
    rates = [factor(kind, step) for step in range(STEPS + 1)]
    assert rates[0] < 0.1
    assert rates[: WARMUP - 1] == sorted(rates[: WARMUP - 1])
    assert rates[WARMUP:] == sorted(rates[WARMUP:], reverse=True)


@pytest.mark.parametrize(("kind", "end"), [("linear", FINAL), ("cosine", FINAL)])
def test_the_end_is_the_final_share(kind, end):
    assert factor(kind, STEPS) == pytest.approx(end)
    assert factor("stable-decay", STEPS) == pytest.approx(FINAL)
    assert factor(kind, STEPS, final=0.0) == pytest.approx(0.0)


def test_inverse_square_root_is_that_of_the_paper():
    """d^-0.5 min(step^-0.5, step warmup^-1.5), equation 3, up to its own peak."""
    peak = WARMUP**-0.5
    for step in range(1, 500):
        paper = min(step**-0.5, step * WARMUP**-1.5) / peak
        assert learning_rate_factor("inverse-sqrt", step - 1, 0.0, warmup=WARMUP) == (
            pytest.approx(paper)
        )


@given(
    kind=st.sampled_from(KINDS),
    step=st.integers(0, 10**7),
    progress=st.floats(-0.5, 2.0),
    warmup=st.integers(0, 10**5),
    decay=st.floats(0.0, 1.0),
    final=st.floats(0.0, 1.0),
)
def test_always_a_share_of_the_peak(kind, step, progress, warmup, decay, final):
    rate = learning_rate_factor(kind, step, progress, warmup=warmup, decay=decay, final=final)
    assert 0.0 <= rate <= 1.0 + 1e-12
