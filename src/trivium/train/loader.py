"""What a step is made of, as a pure function of its number: nothing to save, nothing to restore."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trivium.data.batch import Batch
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom, rows_of_step
from trivium.data.rows import Rows
from trivium.objectives import Objective
from trivium.text.vocabulary import Vocabulary

# The stream of noise that draws the source of a step.
_SOURCE = 1 << 20
# What a micro-batch costs besides its tokens, in tokens: measured on a CPU at 4 layers x 256.
_TOKENS_PER_CALL = 256


@dataclass(frozen=True)
class GlobalBatch:
    """The batch of one step in micro-batches, all of one source.

    `counts` are labels of every term of the loss, `num_tokens` real tokens, both of the whole step;
    no micro-batch has more than `micro_batch_tokens`.
    """

    source: int
    objective: Objective
    micro_batches: tuple[Batch, ...]
    counts: dict[str, int]
    num_tokens: int
    micro_batch_tokens: int


class BatchStream(Protocol):
    """Where the batches of an objective come from; `name` is "" where it is the only one."""

    @property
    def name(self) -> str:
        """As in figures."""
        ...

    @property
    def objective(self) -> Objective:
        """What makes batches of it."""
        ...

    def step(self, number: int, micro_batch_tokens: int) -> tuple[tuple[Batch, ...], int]:
        """The micro-batches and real tokens of the source's `number`-th step, from 0 on."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows or examples in an epoch."""
        ...

    @property
    def rows_per_step(self) -> int:
        """Rows or examples in a global batch."""
        ...


@dataclass(frozen=True)
class RowStream:
    """Rows of token shards, made into batches by a pretraining objective.

    Args:
        rows: of a training split.
        seed: of order and noise.
        rows_per_step: the global batch.
        separate_documents: packed documents do not attend to each other.
    """

    name: str
    objective: Objective
    rows: Rows
    vocabulary: Vocabulary
    seed: int
    rows_per_step: int
    separate_documents: bool = False

    @property
    def num_rows(self) -> int:
        """Rows in an epoch."""
        return len(self.rows)

    def step(self, number: int, micro_batch_tokens: int) -> tuple[tuple[Batch, ...], int]:
        """The next rows of an endless stream of epochs, each in an order of its own."""
        indices, positions = rows_of_step(self.seed, number, self.rows_per_step, len(self.rows))
        with_documents = self.separate_documents or self.objective.needs_documents
        rows = self.rows.take(indices, with_documents=with_documents)
        batch = self.objective.prepare(rows, RowRandom(self.seed, positions), self.vocabulary)
        size = equal_parts(batch.num_rows, max(1, micro_batch_tokens // self.rows.length))
        parts = (batch.rows(start, start + size) for start in range(0, batch.num_rows, size))
        return tuple(parts), int(rows.lengths.sum())


@dataclass(frozen=True)
class ExampleStream:
    """Labelled examples. Those of a step are sorted by length and cut where padding would begin.

    Args:
        examples: encoded.
        seed: of order and noise.
        rows_per_step: examples in a global batch.
    """

    name: str
    objective: Objective
    examples: EncodedExamples
    vocabulary: Vocabulary
    seed: int
    rows_per_step: int

    @property
    def num_rows(self) -> int:
        """Examples in an epoch."""
        return len(self.examples)

    def step(self, number: int, micro_batch_tokens: int) -> tuple[tuple[Batch, ...], int]:
        """The next examples of an endless stream of epochs, each in an order of its own."""
        size = self.rows_per_step
        indices, positions = rows_of_step(self.seed, number, size, len(self.examples))
        lengths = self.examples.lengths[indices]
        order = np.argsort(-lengths, kind="stable")
        parts = []
        for start, stop in cuts_by_length(lengths[order], micro_batch_tokens):
            chosen = order[start:stop]
            rng = RowRandom(self.seed, positions[chosen])
            rows = self.examples.take(indices[chosen])
            parts.append(self.objective.prepare(rows, rng, self.vocabulary))
        return tuple(parts), int(lengths.sum())


class Loader:
    """The steps of a run. Each takes its batch from one source, drawn by weight.

    Args:
        sources: at least one.
        weights: one for each, of any sum.
        seed: of the draws.
        micro_batch_tokens: tokens, padding included, that pass through the model together.
    """

    def __init__(
        self,
        sources: Sequence[BatchStream],
        weights: Sequence[float],
        *,
        seed: int,
        micro_batch_tokens: int,
    ) -> None:
        assert len(sources) == len(weights) > 0
        self.sources, self.seed = tuple(sources), seed
        self.micro_batch_tokens = micro_batch_tokens
        self._bounds = np.cumsum(weights) / sum(weights)
        self._draws = np.empty(0, dtype=np.int64)

    def step(self, number: int) -> GlobalBatch:
        """The batch of step `number`, counted from 0; the same at every call."""
        index, earlier = self._draw(number)
        source = self.sources[index]
        limit = self.micro_batch_tokens
        parts, tokens = source.step(earlier, limit)
        counts: dict[str, int] = {}
        for part in parts:
            for name, count in source.objective.counts(part).items():
                counts[name] = counts.get(name, 0) + count
        return GlobalBatch(index, source.objective, parts, counts, tokens, limit)

    def steps_from(self, number: int) -> Iterator[GlobalBatch]:
        """The batches from step `number` on, each prepared while the one before is computed."""
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as worker:
            ahead = worker.submit(self.step, number)
            for following in itertools.count(number + 1):
                batch = ahead.result()
                ahead = worker.submit(self.step, following)
                yield batch

    def halve_micro_batch(self) -> None:
        """Let half as many tokens pass through the model together."""
        self.micro_batch_tokens = max(1, self.micro_batch_tokens // 2)

    def steps_per_epoch(self) -> float:
        """Steps with as many rows and examples as all sources have together."""
        return sum(source.num_rows / source.rows_per_step for source in self.sources)

    def _draw(self, number: int) -> tuple[int, int]:
        """The source of a step, and how many earlier steps drew the same."""
        if len(self.sources) == 1:
            return 0, number
        while len(self._draws) <= number:
            size = len(self._draws)
            positions = np.arange(size, max(1024, 2 * size))
            uniform = RowRandom(self.seed, positions).uniform(1, _SOURCE)[:, 0]
            draws = np.searchsorted(self._bounds, uniform, side="right")
            draws = draws.clip(max=len(self.sources) - 1)
            self._draws = np.concatenate((self._draws, draws))
        index = int(self._draws[number])
        return index, int((self._draws[:number] == index).sum())


def source_seed(seed: int, number: int) -> int:
    """The seed of one of several sources: with the same seed their noise would be the same."""
    return seed if number == 0 else hash((seed, number))


def equal_parts(rows: int, most: int) -> int:
    """The size of parts of at most `most` rows, all of nearly the same size.

    >>> equal_parts(10, 4), equal_parts(10, 64)
    (4, 10)
    """
    return -(-rows // -(-rows // min(rows, most)))


def cuts_by_length(lengths: np.ndarray, micro_batch_tokens: int) -> list[tuple[int, int]]:
    """Where to cut examples sorted by falling length: the ranges that take the least time together.

    The cost of a range is its tokens, padding included, and `_TOKENS_PER_CALL`. It holds at most
    `micro_batch_tokens`, or one example; it ends where the length changes, or where it is full.
    """
    ends = _possible_ends(lengths, micro_batch_tokens)
    least, before = [0.0], [0]
    for place in range(1, len(ends)):
        costs = []
        for start in range(place - 1, -1, -1):
            padded = int(ends[place] - ends[start]) * int(lengths[ends[start]])
            if padded > micro_batch_tokens and costs:
                break
            costs.append(least[start] + padded + _TOKENS_PER_CALL)
        best = int(np.argmin(costs))
        least.append(costs[best])
        before.append(place - 1 - best)
    cuts, place = [], len(ends) - 1
    while place:
        cuts.append((int(ends[before[place]]), int(ends[place])))
        place = before[place]
    return cuts[::-1]


def _possible_ends(lengths: np.ndarray, micro_batch_tokens: int) -> list[int]:
    """0, where the length changes, where so many of one length fill a range, and the end."""
    changes = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    ends: list[int] = []
    for start, stop in itertools.pairwise(changes):
        fitting = max(1, micro_batch_tokens // max(1, int(lengths[start])))
        ends += range(start, stop, fitting)
    return [*ends, len(lengths)]
