from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.data import RowRandom, derived_seed, shuffled_rows, shuffled_rows_from
from trivium.data.row_order import _mix_bits


def _splitmix64(state: int) -> int:
    """The published generator's output function, in plain integers."""
    mask = 2**64 - 1
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_hash_is_splitmix64():
    # First outputs of splitmix64 seeded with 1234567, as published with the reference code.
    golden = 0x9E3779B97F4A7C15
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [(1234567 + k * golden) % 2**64 for k in (1, 2, 3)]
    assert [_splitmix64(s) for s in states] == expected
    assert _mix_bits(np.array(states, dtype=np.uint64)).tolist() == expected


def permutation(seed, epoch, n):
    return shuffled_rows(seed, epoch, np.arange(n), n)


SIZES = st.integers(1, 500) | st.integers(2**16 - 2, 2**17 + 2)


@given(st.integers(-(2**40), 2**70), st.integers(0, 10**6), SIZES)
@settings(max_examples=50, deadline=None)
def test_permutation_is_one(seed, epoch, n):
    order = permutation(seed, epoch, n)
    assert np.array_equal(np.sort(order), np.arange(n))
    some = np.array([n - 1, 0, n // 2])
    assert np.array_equal(shuffled_rows(seed, epoch, some, n), order[some])


@pytest.mark.parametrize("n", [2**16 + 1, 1_000_003])
def test_orders_of_many_rows_are_uniform_and_uncorrelated(n):
    """Places are independent of rows, of the next places, of epochs and of seeds."""
    order = permutation(3, 0, n)
    columns, rows = np.histogram2d(np.arange(n), order, bins=31)[0], n / 31**2
    assert ((columns - rows) ** 2 / rows).sum() < 31**2 + 5 * np.sqrt(2) * 31
    others = [order[1:], permutation(3, 1, n)[:-1], permutation(4, 0, n)[:-1], np.arange(n - 1)]
    for other in others:
        assert abs(np.corrcoef(order[:-1], other)[0, 1]) < 4.5 / np.sqrt(n)


def test_an_order_of_many_rows_takes_no_memory():
    n = 10**12
    indices, places = shuffled_rows_from(5, n - 3, 7, n)
    assert places.tolist() == list(range(n - 3, n + 4))
    assert len(set(indices.tolist())) == 7
    assert indices.min() >= 0
    assert indices.max() < n


def test_permutations_are_uniform():
    """All 24 orders of four rows come equally often over epochs and over seeds."""
    for orders in (
        [tuple(permutation(5, epoch, 4)) for epoch in range(4800)],
        [tuple(permutation(seed, 3, 4)) for seed in range(4800)],
    ):
        _, counts = np.unique(orders, axis=0, return_counts=True)
        assert len(counts) == 24
        assert ((counts - 200) ** 2 / 200).sum() < 60  # 23 degrees of freedom, p < 1e-4


def test_values_never_change():
    """The order and the noise are part of what a resumed run relies on."""
    assert permutation(1, 0, 7).tolist() == [0, 3, 5, 2, 4, 6, 1]
    assert shuffled_rows(1, 0, np.arange(3), 100_003).tolist() == [54502, 28419, 47874]
    assert derived_seed(7, 1) == 5543667355514832828
    assert len({derived_seed(*numbers) for numbers in [(7,), (7, 1), (7, 2), (7, 1, 0)]}) == 4
    assert RowRandom(3, [5]).bits(2, 1).tolist() == RowRandom(3, [4, 5]).bits(2, 1)[1:].tolist()


@pytest.mark.parametrize(("num_rows", "rows_per_step"), [(13, 5), (5, 13), (7, 7)])
def test_steps_run_through_every_epoch(num_rows, rows_per_step):
    steps = [
        shuffled_rows_from(11, step * rows_per_step, rows_per_step, num_rows)
        for step in range(num_rows)
    ]
    indices = np.concatenate([step[0] for step in steps]).reshape(-1, num_rows)
    positions = np.concatenate([step[1] for step in steps])
    assert np.array_equal(positions, np.arange(num_rows * rows_per_step))
    for epoch, order in enumerate(indices):
        assert np.array_equal(order, permutation(11, epoch, num_rows))
    assert len({tuple(order) for order in indices}) > 1


def test_noise_depends_on_the_row_alone():
    everyone = RowRandom(7, np.arange(101))
    some = RowRandom(7, [93, 2, 41])
    assert np.array_equal(some.uniform(19, 0), everyone.uniform(19, 0)[[93, 2, 41]])
    assert np.array_equal(some.uniform(19, 0)[:, :11], some.uniform(11, 0))
    assert np.array_equal(
        some.integers(997, 19, 1), everyone.slice_rows(0, 101).integers(997, 19, 1)[[93, 2, 41]]
    )
    assert everyone.slice_rows(40, 43).uniform(5, 0)[1, 2] == some.uniform(5, 0)[2, 2]
    assert len(some) == 3


@pytest.mark.parametrize("axis", ["rows", "columns", "channels", "seeds"])
def test_noise_is_uniform_and_uncorrelated_along(axis):
    n = 100_003
    draw = {
        "rows": lambda: RowRandom(0, np.arange(n)).uniform(1, 0)[:, 0],
        "columns": lambda: RowRandom(0, [5]).uniform(n, 0)[0],
        "channels": lambda: np.array([RowRandom(0, [5]).uniform(1, s)[0, 0] for s in range(5003)]),
        "seeds": lambda: np.array([RowRandom(s, [5]).uniform(1, 0)[0, 0] for s in range(5003)]),
    }[axis]()
    count = len(draw)
    assert draw.min() >= 0
    assert draw.max() < 1
    observed = np.histogram(draw, bins=101, range=(0, 1))[0]
    expected = count / 101
    assert ((observed - expected) ** 2 / expected).sum() < 165  # 100 degrees, p < 1e-4
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(draw[:-lag], draw[lag:])[0, 1]) < 4.5 / np.sqrt(count)


def test_channels_are_independent_of_each_other():
    random = RowRandom(9, np.arange(211))
    first, second = random.uniform(499, channel=0), random.uniform(499, channel=1)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 4.5 / np.sqrt(first.size)
    shifted = np.corrcoef(first[:, 1:].ravel(), first[:, :-1].ravel())[0, 1]
    neighbours = np.corrcoef(first[1:].ravel(), first[:-1].ravel())[0, 1]
    assert max(abs(shifted), abs(neighbours)) < 4.5 / np.sqrt(first.size)


@pytest.mark.parametrize("high", [1, 2, 7, 101, 2**32])
def test_integers_are_uniform(high):
    drawn = RowRandom(4, np.arange(307)).integers(high, 331, 1)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < high
    if 1 < high <= 101:
        counts = np.bincount(drawn.ravel(), minlength=high)
        expected = drawn.size / high
        assert ((counts - expected) ** 2 / expected).sum() < high + 5 * np.sqrt(2 * high) + 10
