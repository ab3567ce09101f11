"""Steps of labelled examples: all examples equally often, cut where padding begins."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.data import Examples
from trivium.objectives.told_tokens import ToldTokens
from trivium.train.feed import ExampleFeed, cuts_by_length


def examples(count: int, longest: int = 23) -> Examples:
    """Example n has ids that are all n."""
    sizes = np.random.default_rng(3).integers(1, longest, count)
    rows = [[n] * size for n, size in enumerate(sizes.tolist())]
    return Examples({"input_ids": rows, "labels": rows}, pad_id=10_000)


def feed(count: int = 53, *, step: int = 13, tokens: int = 71, seed: int = 5) -> ExampleFeed:
    return ExampleFeed(
        ToldTokens(), examples(count), seed=seed, examples_per_step=step, micro_tokens=tokens
    )


def seen(step) -> list[int]:
    return [int(row[0]) for part in step.parts for row in part.batch.input_ids]


def test_an_epoch_shows_every_example_once():
    found = feed()
    steps = [found.step(number) for number in range(53)]  # 13 epochs
    assert [len(seen(step)) for step in steps] == [13] * 53
    stream = [n for step in steps for n in seen(step)]
    assert set(Counter(stream).values()) == {13}
    first = [n for number in range(4) for n in seen(steps[number])]
    assert len(set(first)) == 52


def test_a_step_is_a_function_of_its_number():
    found, again = feed(), feed()
    order = [7, 3, 7, 0, 11]
    assert [seen(found.step(n)) for n in order] == [seen(again.step(n)) for n in order]
    assert seen(found.step(3)) != seen(feed(seed=6).step(3))
    assert {*seen(feed(tokens=9).step(3))} == {*seen(found.step(3))}


def test_counts_and_tokens_are_of_the_whole_step():
    for tokens in (1, 71, 10_000):
        found = feed(tokens=tokens)
        step = found.step(2)
        lengths = found.examples.lengths[seen(step)]
        assert step.num_tokens == lengths.sum()
        assert step.counts == (int(lengths.sum()),)
        assert len(step.parts) == (13 if tokens == 1 else len(step.parts))


def test_a_step_larger_than_the_data():
    found = feed(count=5, step=13)
    counted = Counter(seen(found.step(0)))
    assert sorted(counted.values()) == [2, 2, 3, 3, 3]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 61), min_size=1, max_size=47), st.sampled_from([1, 71, 300, 5000]))
def test_cuts_hold_everything_once_within_the_tokens(lengths, tokens):
    ordered = np.sort(np.array(lengths))[::-1]
    cuts = cuts_by_length(ordered, tokens)
    assert [n for start, stop in cuts for n in range(start, stop)] == list(range(len(lengths)))
    for start, stop in cuts:
        padded = (stop - start) * int(ordered[start])
        assert padded <= tokens or stop - start == 1


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=9),
    st.sampled_from([1, 300, 900, 10_000]),
)
def test_no_other_cuts_take_less_time(lengths, tokens):
    ordered = np.sort(np.array(lengths))[::-1]

    def time_of(cuts):
        sizes = [(stop - start, (stop - start) * int(ordered[start])) for start, stop in cuts]
        allowed = all(padded <= tokens or rows == 1 for rows, padded in sizes)
        return sum(padded + 256 for _, padded in sizes) if allowed else np.inf

    inner = range(1, len(ordered))
    every = (
        [0, *chosen, len(ordered)]
        for count in range(len(ordered))
        for chosen in itertools.combinations(inner, count)
    )
    best = min(time_of(itertools.pairwise(ends)) for ends in map(list, every))
    # Cuts inside a run of equal lengths are looked at only where the run is full.
    assert time_of(cuts_by_length(ordered, tokens)) <= best + 256


def test_where_padding_begins():
    lengths = np.array([400] * 5 + [310, 300, 300, 290, 290, 20, 3])
    assert cuts_by_length(lengths, 10_000) == [(0, 5), (5, 10), (10, 12)]
    assert cuts_by_length(lengths, 1300) == [(0, 3), (3, 6), (6, 10), (10, 12)]
    assert cuts_by_length(lengths // 10, 10_000) == [(0, 12)]
