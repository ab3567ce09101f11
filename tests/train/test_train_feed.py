"""Feeds are pure functions of the step: what each step holds agrees with a count by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom, permutation
from trivium.nn.loss import Loss
from trivium.objectives import Causal, Mixture, PrefixLM, TextObjective
from trivium.train.feed import MixedFeed, RowFeed, StepBatch
from trivium.train.validation import MixedValidation, Validation, ValidationPart

LENGTH = 5


class NumberedRows:
    """Rows that are told apart: row r of source s is 1000 s + r, at all positions."""

    length = LENGTH

    def __init__(self, source: int, count: int) -> None:
        self.source, self.count = source, count

    def __len__(self) -> int:
        return self.count

    def take(self, indices, *, with_documents: bool = False) -> RowBatch:
        ids = 1000 * self.source + np.asarray(indices)[:, None] + np.zeros(LENGTH, dtype=np.int64)
        return RowBatch(ids, np.full(len(ids), LENGTH))


def feed_of(*sizes: int, shares: tuple[float, ...], rows_per_step: int = 7) -> MixedFeed:
    feeds = [
        RowFeed(Causal(), NumberedRows(n, size), 50 + n, rows_per_step=1, micro_batch=3)
        for n, size in enumerate(sizes)
    ]
    return MixedFeed(feeds, shares, seed=11, rows_per_step=rows_per_step)


def rows_in(step: StepBatch) -> list[int]:
    return [int(row) for part in step.parts for row in part.batch.input_ids[:, 0]]


def by_hand(sizes: tuple[int, ...], shares: tuple[float, ...], steps: int, per_step: int):
    """The rows of every step: position by position, each source counted on its own."""
    taken, found = [0] * len(sizes), []
    for step in range(steps):
        rows = []
        for position in range(step * per_step, (step + 1) * per_step):
            draw = RowRandom(11, [position]).uniform(1, 1 << 20)[0, 0] * sum(shares)
            source = next(n for n in range(len(sizes)) if draw < sum(shares[: n + 1]))
            epoch, place = divmod(taken[source], sizes[source])
            rows.append(1000 * source + int(permutation(50 + source, epoch, sizes[source])[place]))
            taken[source] += 1
        found.append(sorted(rows))
    return found, taken


@pytest.mark.parametrize(
    ("sizes", "shares"), [((13, 5), (3.0, 1.0)), ((17,), (0.3,)), ((3, 29, 2), (0.2, 0.7, 0.1))]
)
def test_a_mix_of_sources_is_what_counting_gives(sizes, shares) -> None:
    expected, taken = by_hand(sizes, shares, steps=40, per_step=7)
    feed = feed_of(*sizes, shares=shares)
    assert [sorted(rows_in(feed.step(n))) for n in range(40)] == expected
    for n in (39, 3, 17, 0):
        assert sorted(rows_in(feed.step(n))) == expected[n]
        assert sorted(rows_in(feed_of(*sizes, shares=shares).step(n))) == expected[n]
    for count, share in zip(taken, shares):
        chance = share / sum(shares)
        assert abs(count - 280 * chance) <= 4 * (280 * chance * (1 - chance)) ** 0.5


def test_every_source_is_read_to_its_end_before_it_begins_again() -> None:
    feed = feed_of(13, 5, shares=(1.0, 1.0))
    rows = [row for n in range(20) for row in rows_in(feed.step(n))]
    for source, size in enumerate((13, 5)):
        own = [row for row in rows if row // 1000 == source]
        for start in range(0, len(own) - size + 1, size):
            assert len(set(own[start : start + size])) == size


def test_parts_are_micro_batches_and_tokens_are_counted() -> None:
    step = feed_of(13, 5, shares=(1.0, 1.0)).step(2)
    assert step.num_tokens == 7 * LENGTH
    assert step.counts == (7 * (LENGTH - 1),)
    assert all(part.batch.num_rows <= 3 for part in step.parts)


def test_rows_are_shared_out_among_objectives() -> None:
    mixture = Mixture((Causal(), PrefixLM()), (1.0, 3.0), ("causal", "prefix-lm"))
    feed = RowFeed(mixture, NumberedRows(0, 31), 5, rows_per_step=6, micro_batch=4)
    alone = RowFeed(Causal(), NumberedRows(0, 31), 5, rows_per_step=6, micro_batch=4)
    counts = {"Causal": 0, "PrefixLM": 0}
    for n in range(60):
        step = feed.step(n)
        assert sorted(rows_in(step)) == sorted(rows_in(alone.step(n)))
        for part in step.parts:
            counts[type(part.objective).__name__] += part.batch.num_rows
        again = feed.step(n)
        for one, other in zip(step.parts, again.parts, strict=True):
            assert np.array_equal(one.batch.labels, other.batch.labels)
    assert sum(counts.values()) == 360
    assert abs(counts["Causal"] - 90) <= 4 * (360 * 0.25 * 0.75) ** 0.5


def test_what_a_row_is_asked_does_not_depend_on_the_rows_beside_it() -> None:
    mixture = Mixture((Causal(), PrefixLM()), (1.0, 1.0), ("causal", "prefix-lm"))
    small, large = (
        RowFeed(mixture, NumberedRows(0, 31), 5, rows_per_step=size, micro_batch=31)
        for size in (2, 30)
    )

    def asked(feed: RowFeed, steps: int) -> dict[int, list[int]]:
        parts = (part for n in range(steps) for part in feed.step(n).parts)
        return {
            int(ids[0]): labels.tolist()
            for part in parts
            for ids, labels in zip(part.batch.input_ids, part.batch.labels, strict=True)
        }

    assert asked(small, 15) == asked(large, 1)


class Told(TextObjective):
    """Losses that are known beforehand, one or two terms."""

    heads = ("lm",)

    def __init__(self, value: float, labels: int, pair: float | None = None) -> None:
        self.value, self.labels, self.pair = value, labels, pair

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss",) if self.pair is None else ("mlm", "nsp")

    def counts(self, batch: Batch) -> tuple[int, ...]:
        tokens = batch.num_rows * self.labels
        return (tokens,) if self.pair is None else (tokens, batch.num_rows)

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        labels = np.full_like(rows.input_ids, NO_LOSS)
        labels[:, : self.labels] = 1
        return Batch(input_ids=rows.input_ids, labels=labels)

    def loss(self, model, batch) -> Loss:
        rows, count = len(batch.inputs["input_ids"]), len(batch.targets)
        main = Loss(torch.tensor(self.value * count), count)
        if self.pair is None:
            return main
        pairs = Loss(torch.tensor(self.pair * rows), rows, name="nsp")
        return Loss(main.sum, count, name="mlm", others=(pairs,))


def test_objectives_of_other_terms_are_brought_into_one_order() -> None:
    mixture = Mixture((Told(2.0, 3), Told(5.0, 1, pair=0.5)), (1.0, 1.0), ("a", "b"))
    assert mixture.terms == ("mlm", "nsp")
    feed = RowFeed(mixture, NumberedRows(0, 31), 5, rows_per_step=8, micro_batch=3)
    for n in range(9):
        step = feed.step(n)
        with_pairs = sum(
            part.batch.num_rows
            for part in step.parts
            if (part.batch.labels[0] != NO_LOSS).sum() == 1
        )
        assert step.counts == (3 * (8 - with_pairs) + with_pairs, with_pairs)


class Model(torch.nn.Module):
    device = torch.device("cpu")


def test_validations_are_weighed_by_share_however_many_rows_are_looked_at() -> None:
    first, second = Told(2.0, 3), Told(5.0, 1)
    parts = [
        ValidationPart(Validation(first, NumberedRows(0, 30), tokens=None, batch=4), 0.25, ("a",)),
        ValidationPart(Validation(second, NumberedRows(1, 7), tokens=15, batch=4), 0.75, ("b",)),
    ]
    found = MixedValidation(parts).losses(Model(), torch.float32)
    assert found == {
        "valid_loss": pytest.approx((0.25 * 3 * 2.0 + 0.75 * 5.0) / (0.25 * 3 + 0.75)),
        "valid_a": pytest.approx(2.0),
        "valid_b": pytest.approx(5.0),
    }


def test_terms_and_groups_are_told_apart() -> None:
    mixture = Mixture((Told(2.0, 3), Told(5.0, 1, pair=0.5)), (1.0, 1.0), ("a", "b"))
    parts = [
        ValidationPart(Validation(one, NumberedRows(0, 9), tokens=None, batch=4), 0.5, (name,))
        for one, name in zip(mixture.asked, mixture.names, strict=True)
    ]
    found = MixedValidation(parts).losses(Model(), torch.float32)
    tokens = (3 * 2.0 + 5.0) / 4
    assert found == {
        "valid_loss": pytest.approx(tokens + 0.5),
        "valid_mlm": pytest.approx(tokens),
        "valid_nsp": pytest.approx(0.5),
        "valid_a": pytest.approx(2.0),
        "valid_b": pytest.approx(5.5),
    }
