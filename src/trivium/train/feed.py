"""What a step is made of, as a pure function of its number: nothing to save, nothing to restore."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

import numpy as np

from trivium.data import Batch, Examples, RowRandom, Rows, rows_between, rows_of_step
from trivium.objectives import Mixture, Objective, TextObjective

# Of a step's rows, the source that each is taken from: the stream of noise that decides it.
_SOURCE = 1 << 20
_COUNTED_AT_ONCE = 1 << 20
# What a micro-batch costs besides its tokens, in tokens: measured on a CPU at 4 layers x 256.
_TOKENS_A_PART = 256


@dataclass(frozen=True)
class Part:
    """Some rows of a step that go through the model together, and what is asked of them."""

    objective: Objective
    batch: Batch


@dataclass(frozen=True)
class StepBatch:
    """The global batch of one step in micro-batches, and how many real tokens it shows."""

    parts: tuple[Part, ...]
    num_tokens: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Labels of the whole step, for every term of the loss."""
        counted = (part.objective.counts(part.batch) for part in self.parts)
        return tuple(map(sum, zip_longest(*counted, fillvalue=0)))


class Feed(Protocol):
    """Where the batches of a run come from."""

    def step(self, number: int) -> StepBatch:
        """The batch of step `number`, counted from 0; the same whenever it is asked for."""
        ...


@dataclass(frozen=True)
class RowFeed:
    """Rows of text, questions made of them by an objective, or by several that share the rows.

    Args:
        objective: what is asked.
        rows: of a training split.
        seed: of order and noise.
        rows_per_step: the global batch.
        micro_batch: rows that go through the model together.
        separate_documents: keep packed documents from seeing each other.
    """

    objective: TextObjective | Mixture
    rows: Rows
    seed: int
    rows_per_step: int
    micro_batch: int
    separate_documents: bool = False

    def step(self, number: int) -> StepBatch:
        """The next rows of an endless stream of epochs, each in an order of its own."""
        indices, positions = rows_of_step(self.seed, number, self.rows_per_step, len(self.rows))
        return self.at(indices, positions)

    def at(self, indices: np.ndarray, positions: np.ndarray) -> StepBatch:
        """Some rows; `positions` in the stream key their noise, and what is asked of them."""
        if not isinstance(self.objective, Mixture):
            return self._asked(self.objective, indices, positions)
        asked = self.objective.drawn(RowRandom(self.seed, positions))
        parts: list[Part] = []
        tokens = 0
        for number, objective in enumerate(self.objective.asked):
            here = asked == number
            if here.any():
                found = self._asked(objective, indices[here], positions[here])
                parts += found.parts
                tokens += found.num_tokens
        return StepBatch(tuple(parts), tokens)

    def _asked(
        self, objective: TextObjective, indices: np.ndarray, positions: np.ndarray
    ) -> StepBatch:
        """Some rows, all for one objective."""
        taken = self.rows.take(
            indices, with_documents=self.separate_documents or objective.needs_documents
        )
        batch = objective.prepare(taken, RowRandom(self.seed, positions))
        parts = tuple(
            Part(objective, batch.rows(start, start + self.micro_batch))
            for start in range(0, batch.num_rows, self.micro_batch)
        )
        return StepBatch(parts, int(taken.lengths.sum()))


@dataclass(frozen=True)
class ExampleFeed:
    """Labelled examples. Those of a step are sorted by length and cut where padding would begin.

    Args:
        objective: what is asked.
        examples: encoded.
        seed: of the order.
        examples_per_step: the global batch.
        micro_tokens: tokens, padding included, that go through the model together.
    """

    objective: Objective
    examples: Examples
    seed: int
    examples_per_step: int
    micro_tokens: int

    def step(self, number: int) -> StepBatch:
        """The next examples of an endless stream of epochs, each in an order of its own."""
        size = self.examples_per_step
        indices, _ = rows_of_step(self.seed, number, size, len(self.examples))
        lengths = self.examples.lengths[indices]
        order = np.argsort(-lengths, kind="stable")
        parts = tuple(
            Part(self.objective, self.examples.take(indices[order[start:stop]]))
            for start, stop in cuts_by_length(lengths[order], self.micro_tokens)
        )
        return StepBatch(parts, int(lengths.sum()))


class MixedFeed:
    """Rows of several feeds, one for each source, by share.

    Every position of the stream draws its feed, and every feed is read in its own order; the rows
    of one feed in a step go through the model together.

    Args:
        feeds: at least one; their own `rows_per_step` says nothing here.
        shares: one for each, of any sum.
        seed: of the draws.
        rows_per_step: the global batch.
    """

    def __init__(
        self, feeds: Sequence[RowFeed], shares: Sequence[float], *, seed: int, rows_per_step: int
    ) -> None:
        assert len(feeds) == len(shares) > 0
        self.feeds, self.seed, self.rows_per_step = tuple(feeds), seed, rows_per_step
        self._bounds = np.cumsum(shares) / sum(shares)
        self._counted = 0, np.zeros(len(feeds), dtype=np.int64)

    def step(self, number: int) -> StepBatch:
        """The rows of this step, feed by feed."""
        start = number * self.rows_per_step
        before = self._drawn_before(start)
        drawn = self._feeds_at(start, start + self.rows_per_step)
        parts: list[Part] = []
        tokens = 0
        for index, feed in enumerate(self.feeds):
            count = int((drawn == index).sum())
            if not count:
                continue
            first = int(before[index])
            indices, positions = rows_between(feed.seed, first, first + count, len(feed.rows))
            found = feed.at(indices, positions)
            parts += found.parts
            tokens += found.num_tokens
        return StepBatch(tuple(parts), tokens)

    def _feeds_at(self, start: int, stop: int) -> np.ndarray:
        """Which feed each position of the stream draws: int64 [stop - start]."""
        draws = RowRandom(self.seed, np.arange(start, stop)).uniform(1, _SOURCE)[:, 0]
        return np.searchsorted(self._bounds, draws, side="right").clip(max=len(self.feeds) - 1)

    def _drawn_before(self, position: int) -> np.ndarray:
        """How often each feed was drawn before a position; counted on from the last one asked."""
        at, counts = self._counted
        if position < at:
            at, counts = 0, np.zeros(len(self.feeds), dtype=np.int64)
        while at < position:
            stop = min(position, at + _COUNTED_AT_ONCE)
            counts = counts + np.bincount(self._feeds_at(at, stop), minlength=len(self.feeds))
            at = stop
        self._counted = at, counts
        return counts


def cuts_by_length(lengths: np.ndarray, micro_tokens: int) -> list[tuple[int, int]]:
    """Where to cut examples sorted by falling length: the ranges that take least time together.

    A range takes as long as its tokens, padding included, and as `_TOKENS_A_PART` more. It holds at
    most `micro_tokens`, or one example; it ends where the length changes, or where it is full.
    """
    ends = _possible_ends(lengths, micro_tokens)
    least, before = [0.0], [0]
    for place in range(1, len(ends)):
        costs = []
        for start in range(place - 1, -1, -1):
            padded = int(ends[place] - ends[start]) * int(lengths[ends[start]])
            if padded > micro_tokens and costs:
                break
            costs.append(least[start] + padded + _TOKENS_A_PART)
        best = int(np.argmin(costs))
        least.append(costs[best])
        before.append(place - 1 - best)
    cuts, place = [], len(ends) - 1
    while place:
        cuts.append((int(ends[before[place]]), int(ends[place])))
        place = before[place]
    return cuts[::-1]


def _possible_ends(lengths: np.ndarray, micro_tokens: int) -> list[int]:
    """0, where the length changes, where so many of one length fill a range, and the end."""
    changes = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    ends: list[int] = []
    for start, stop in itertools.pairwise(changes):
        fitting = max(1, micro_tokens // max(1, int(lengths[start])))
        ends += range(start, stop, fitting)
    return [*ends, len(lengths)]
