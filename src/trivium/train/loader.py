"""The batch of a step, as a pure function of the number of the step.

Loaders therefore have no state that a checkpoint would save and restore.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trivium.data.batch import PAD_TO_MULTIPLE_OF, Batch, RowBatch, padded_length
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom, contiguous_rows, permuted, rows_from
from trivium.data.rows import Rows
from trivium.objectives import AUX_LOSS, MicroBatchSlice, Objective
from trivium.text.vocabulary import Vocabulary
from trivium.train.distributed import SINGLE_PROCESS, Parallel

# The channel of noise from which the source of a step is drawn.
_SOURCE_CHANNEL = 1 << 20
# The fixed cost of a micro-batch, in tokens: measured on a CPU with 4 layers of width 256.
_TOKENS_PER_CALL = 256
# The size of batches of held-out rows and examples.
_VALIDATION_ROWS, _VALIDATION_TOKENS = 32, 4096
# Held-out rows that are prepared together, for objectives where a row depends on other rows.
_VALIDATION_ROWS_TOGETHER = 1024


class _Part(NamedTuple):
    """A micro-batch of a step: its number, the positions of its rows in the step, and its weight.

    The weight is 1, or 0 where another process counts the micro-batch.
    """

    number: int
    positions: np.ndarray
    weight: float


@dataclass(frozen=True)
class BatchStream:
    """The rows of text or labelled examples of a source, made into batches by its objective.

    Args:
        name: the name of the source in metrics; "" if the run has only one source.
        objective: the objective that makes batches from rows.
        data: rows, or encoded examples.
        vocabulary: the facts about the tokenizer.
        seed: the seed of order and noise.
        rows_per_step: the number of rows or examples in a global batch.
        separate_documents: whether documents in a row do not attend to each other.
        has_aux_loss: whether layers of the model add an auxiliary loss per token (`AUX_LOSS`).
        num_taken: the number of rows or examples that the whole run takes, so that the last step
            may be smaller; None if every step is full.
    """

    name: str
    objective: Objective
    data: Rows | EncodedExamples
    vocabulary: Vocabulary
    seed: int = 0
    rows_per_step: int = 1
    separate_documents: bool = False
    has_aux_loss: bool = False
    num_taken: int | None = None

    @property
    def longest(self) -> int:
        """The number of tokens of the longest row or example."""
        if isinstance(self.data, Rows):
            return self.data.length
        return int(self.data.lengths.max(initial=1))

    @property
    def contiguous_steps_per_epoch(self) -> int:
        """The number of steps in an epoch of rows that are read in lanes (`contiguous_rows`)."""
        return -(-len(self.data) // self.rows_per_step)

    def balanced_micro_batch(self, processes: int, most: int) -> int:
        """Return the most tokens of a micro-batch, up to `most`, that give processes equal work."""
        if self.objective.rolls_out:  # the samples are divided
            return most
        rows = -(-self.rows_per_step // processes)
        length = self.longest if isinstance(self.data, Rows) else float(self.data.lengths.mean())
        return max(1, int(equal_parts(rows, max(1, int(most / length))) * length))

    def step(
        self,
        number: int,
        micro_batch_tokens: int,
        parallel: Parallel = SINGLE_PROCESS,
        *,
        rows_before: int = 0,
    ) -> GlobalBatch:
        """Return this process's part of step `number`, counted from 0.

        Steps take the next rows of an endless sequence of epochs, after the first `rows_before`
        rows. Each epoch has its own order; with an objective that carries state every epoch has the
        order of the text.
        """
        if self.objective.rolls_out:  # all processes have the prompts, and divide the samples
            parallel = SINGLE_PROCESS
        start = rows_before + number * self.rows_per_step
        if self.objective.carries_state:
            number = start // self.rows_per_step
            batch = self._contiguous_step(number, self.rows_per_step, micro_batch_tokens, parallel)
            return dataclasses.replace(
                batch, is_prefill=number % self.contiguous_steps_per_epoch == 0
            )
        indices, keys = rows_from(self.seed, start, self.rows_per_step, len(self.data))
        left = (self.num_taken or 0) - start
        if left > 0:
            indices, keys = indices[:left], keys[:left]
        if self.objective.needs_whole_step:
            groups = [np.arange(len(indices))]
        elif isinstance(self.data, EncodedExamples):
            groups = group_by_length(self.data.lengths[indices], micro_batch_tokens)
        else:
            groups = self._equal_groups(len(indices), micro_batch_tokens)
        parts = self._divide(groups, parallel)
        return self._global_batch(indices, keys, parts, micro_batch_tokens)

    def validation_batches(
        self, tokens: int, limit: int | None = None, parallel: Parallel = SINGLE_PROCESS
    ) -> Iterator[GlobalBatch]:
        """Yield this process's part of about `tokens` tokens of held-out data, in pieces.

        The rows or examples, at most `limit` of them, are evenly spaced; with an objective that
        carries state they are the first rows of every lane. Every call yields the same rows with
        the same noise.
        """
        size = len(self.data)
        mean = self.data.length if isinstance(self.data, Rows) else self.data.lengths.mean()
        count = min(size, max(1, int(tokens / mean)), limit or size)
        if self.objective.carries_state:
            text_streams = min(self.rows_per_step, count)
            for number in range(-(-count // text_streams)):
                yield self._contiguous_step(number, text_streams, _VALIDATION_TOKENS, parallel)
            return
        if isinstance(self.data, Rows):
            indices = np.sort(permuted(0, 0, np.arange(count), size))
        else:
            indices = np.arange(count) * size // count
        if self.objective.needs_whole_step:
            groups = _pieces(count, self.rows_per_step)
        elif isinstance(self.data, EncodedExamples):
            groups = group_by_length(self.data.lengths[indices], _VALIDATION_TOKENS)
        else:
            for piece in _pieces(count, _VALIDATION_ROWS_TOGETHER):
                parts = self._divide(_pieces(len(piece), _VALIDATION_ROWS), parallel)
                rows = indices[piece]
                yield self._global_batch(rows, rows, parts, _VALIDATION_TOKENS)
            return
        for part in self._divide(groups, parallel):
            yield self._global_batch(indices, indices, [part], _VALIDATION_TOKENS)

    def _contiguous_step(
        self, number: int, text_streams: int, micro_batch_tokens: int, parallel: Parallel
    ) -> GlobalBatch:
        """Return this process's part of step `number`, whose rows are read in `text_streams` lanes.

        The same process always reads the same lanes.
        """
        indices, keys = contiguous_rows(number, text_streams, len(self.data))
        parts = self._divide(self._equal_groups(text_streams, micro_batch_tokens), parallel)
        batch = self._global_batch(indices, keys, parts, micro_batch_tokens)
        return dataclasses.replace(batch, text_streams=tuple(part.positions for part in parts))

    def _equal_groups(self, count: int, micro_batch_tokens: int) -> list[np.ndarray]:
        """Return the positions of `count` rows in a step, in micro-batches of nearly equal size."""
        size = equal_parts(count, max(1, micro_batch_tokens // self.longest))
        return _pieces(count, size)

    def _divide(self, groups: Sequence[np.ndarray], parallel: Parallel) -> list[_Part]:
        """Return this process's micro-batches (`Parallel.shard`).

        If the objective needs the whole step, all processes compute every group together, and one
        of them counts it.
        """
        if not self.objective.needs_whole_step:
            return [_Part(*part) for part in parallel.shard(groups)]
        size, rank = parallel.data_size, parallel.data_rank
        return [_Part(n, group, float(n % size == rank)) for n, group in enumerate(groups)]

    def _global_batch(
        self, indices: np.ndarray, keys: np.ndarray, parts: Sequence[_Part], micro_batch_tokens: int
    ) -> GlobalBatch:
        """Return micro-batches of the rows `indices` of a step, with the noise of `keys`."""
        batches, num_tokens = [], 0
        label_counts: Counter[str] = Counter()
        for part, (rows, batch) in zip(parts, self._prepared(indices, keys, parts), strict=True):
            batches.append(batch)
            counted = int(part.weight)
            num_tokens += counted * rows.num_tokens
            for term, count in self.objective.label_counts(batch).items():
                label_counts[term] += counted * count
            if self.has_aux_loss:
                label_counts[AUX_LOSS] += counted * batch.num_tokens
        weights = tuple((part.number, part.weight) for part in parts)
        return GlobalBatch(
            self, tuple(batches), weights, micro_batch_tokens, dict(label_counts), num_tokens
        )

    def _prepared(
        self, indices: np.ndarray, keys: np.ndarray, parts: Sequence[_Part]
    ) -> Iterator[tuple[RowBatch, Batch]]:
        """Yield the rows of every micro-batch, and what the objective makes of them.

        If rows of a step depend on each other, all of them are prepared together and then cut.
        """
        if not self.objective.prepares_steps:
            for part in parts:
                rows = self._take(indices[part.positions])
                yield rows, self._prepare(rows, keys[part.positions])
            return
        rows = self._take(indices)
        batch = self._prepare(rows, keys)
        for part in parts:
            ends = int(part.positions[0]), int(part.positions[-1]) + 1
            yield rows.rows(*ends), batch.rows(*ends)

    def _take(self, indices: np.ndarray) -> RowBatch:
        if isinstance(self.data, EncodedExamples):
            return self.data.take(indices, multiple=PAD_TO_MULTIPLE_OF)
        with_documents = self.separate_documents or self.objective.needs_documents
        return self.data.take(indices, with_documents=with_documents)

    def _prepare(self, rows: RowBatch, keys: np.ndarray) -> Batch:
        return self.objective.prepare(rows, RowRandom(self.seed, keys), self.vocabulary)


@dataclass(frozen=True)
class GlobalBatch:
    """A process's part of the batch of one step; all rows of a step belong to one source.

    Args:
        stream: the source.
        micro_batches: the micro-batches of this process, each of at most `micro_batch_tokens`
            tokens, or of one longer row or example.
        micro_batch_weights: for each micro-batch, its index in the step and its weight. The weight
            is 1, or 0 where another process counts the micro-batch: all processes have the same
            number of micro-batches, so that some are repeated.
        micro_batch_tokens: the largest number of tokens in a micro-batch.
        label_counts: the number of labels per loss term, in these micro-batches or, after
            `all_reduced`, in the whole step.
        num_tokens: the number of tokens without padding, in these micro-batches or, after
            `all_reduced`, in the whole step.
        text_streams: the text streams that each micro-batch's rows continue; only for objectives
            that carry state.
        is_prefill: whether all text streams start at the beginning of the text.
        num_iterations: the number of updates of the weights that learn from this batch.
    """

    stream: BatchStream
    micro_batches: tuple[Batch, ...]
    micro_batch_weights: tuple[tuple[int, float], ...]
    micro_batch_tokens: int
    label_counts: dict[str, int]
    num_tokens: int
    text_streams: tuple[np.ndarray, ...] = ()
    is_prefill: bool = False
    num_iterations: int = 1

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each pass through the model."""
        if not self.stream.objective.needs_whole_step:
            return [one.num_rows for one in self.micro_batches]
        slices = [micro_batch_slices(one, self.micro_batch_tokens) for one in self.micro_batches]
        return [cut.stop - cut.start for each in slices for cut in each]

    def all_reduced(self, parallel: Parallel) -> GlobalBatch:
        """Return the batch with the counts summed over all processes, which all take part."""
        num_tokens, *counts = parallel.all_reduce_sum(self.num_tokens, *self.label_counts.values())
        label_counts = dict(zip(self.label_counts, counts, strict=True))
        return dataclasses.replace(self, label_counts=label_counts, num_tokens=num_tokens)


@dataclass(frozen=True)
class LoaderPhase:
    """The sources of a phase of the run.

    Args:
        streams: the batches of every source; at least one source.
        sampling_weights: a weight for every source; they need not sum to 1.
        continues: whether rows continue after those of the phase before. Otherwise, they begin an
            order of their own.
    """

    streams: Sequence[BatchStream]
    sampling_weights: Sequence[float]
    continues: bool = False

    @property
    def sampling_probabilities(self) -> list[float]:
        """The probability of drawing each source: its weight divided by the sum of all weights."""
        return [one / sum(self.sampling_weights) for one in self.sampling_weights]

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens per step."""
        means = (
            one.data.length if isinstance(one.data, Rows) else float(one.data.lengths.mean())
            for one in self.streams
        )
        sizes = (one.rows_per_step * mean for one, mean in zip(self.streams, means, strict=True))
        return sum(
            share * size for share, size in zip(self.sampling_probabilities, sizes, strict=True)
        )

    @property
    def steps_per_epoch(self) -> float:
        """The number of steps in an epoch of the labelled sources, or of text.

        If a mix has labelled sources, an epoch takes all of their examples once. The steps of text
        in the mix come on top.
        """
        labelled = [stream.objective.labelled for stream in self.streams]
        counted = [i for i, is_labelled in enumerate(labelled) if is_labelled or not any(labelled)]
        steps = sum(len(self.streams[i].data) / self.streams[i].rows_per_step for i in counted)
        return steps / sum(self.sampling_probabilities[i] for i in counted)


@dataclass
class Loader:
    """The steps of a run. Each step takes its batch from one source, drawn by weight.

    Args:
        streams: the batches of every source in the last phase; at least one source.
        sampling_weights: a weight for every source; they need not sum to 1.
        seed: the seed of the draws.
        micro_batch_tokens: the number of tokens, padding included, in one pass through the model.
        parallel: the processes of the run; each prepares its own part of a step.
        earlier: the phases before the last one.
        continues: whether the last phase continues with the rows after those of the phase before.
        borders: for every earlier phase, the step at which it ends, as far as this is known.
    """

    streams: Sequence[BatchStream]
    sampling_weights: Sequence[float]
    seed: int
    micro_batch_tokens: int
    parallel: Parallel = SINGLE_PROCESS
    earlier: Sequence[LoaderPhase] = ()
    continues: bool = False
    borders: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        last = LoaderPhase(self.streams, self.sampling_weights, self.continues)
        self.phases = [*self.earlier, last]
        self.sampling_probabilities = last.sampling_probabilities
        self._draws: dict[int, np.ndarray] = {}

    def phase_of(self, number: int) -> int:
        """Return the index of the phase of a step. A phase continues until its end is known."""
        return bisect.bisect_right(self.borders, number)

    def step(self, number: int, parallel: Parallel | None = None) -> GlobalBatch:
        """Return the part of step `number` of this process, or of another one."""
        phase = self.phase_of(number)
        index, source_step = self._source_of_step(number, phase)
        return (
            self.phases[phase]
            .streams[index]
            .step(
                source_step,
                self.micro_batch_tokens,
                parallel or self.parallel,
                rows_before=self._rows_before(phase, index),
            )
        )

    def halve_micro_batches(self, number: int) -> GlobalBatch:
        """Use smaller micro-batches from now on. Returns the batch of step `number`.

        `micro_batch_tokens` is halved until this step has more micro-batches, or one row in each.
        A run that starts with the new number has the same micro-batches.
        """
        before = len(self.step(number).sizes)
        while True:
            self.micro_batch_tokens = max(1, self.micro_batch_tokens // 2)
            batch = self.step(number)
            if len(batch.sizes) > before or max(batch.sizes) == 1:
                return batch

    def steps_from(self, number: int) -> Iterator[GlobalBatch]:
        """Yield the batches from step `number` on, each prepared while the last one is computed.

        A batch is prepared again if a phase has ended meanwhile. All processes take part. The
        counts are those of the whole step.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as worker:
            ahead, phase = worker.submit(self.step, number), self.phase_of(number)
            for following in itertools.count(number + 1):
                batch = ahead.result()
                is_smaller = batch.micro_batch_tokens != self.micro_batch_tokens
                if is_smaller or phase != self.phase_of(following - 1):
                    batch = self.step(following - 1)
                ahead, phase = worker.submit(self.step, following), self.phase_of(following)
                yield batch.all_reduced(self.parallel)

    def steps_per_epoch(self) -> float:
        """Return the number of steps in an epoch, as in the last phase (`LoaderPhase`)."""
        return self.phases[-1].steps_per_epoch

    def epochs_at(self, number: int) -> float:
        """Return the number of epochs that the steps before step `number` took."""
        epochs = 0.0
        for index, phase in enumerate(self.phases[: self.phase_of(number) + 1]):
            end = min([number, *self.borders[index : index + 1]])
            epochs += (end - self._phase_start(index)) / phase.steps_per_epoch
        return epochs

    def _phase_start(self, phase: int) -> int:
        """Return the first step of a phase."""
        return self.borders[phase - 1] if phase else 0

    def _source_of_step(self, number: int, phase: int) -> tuple[int, int]:
        """Return the index of a step's source, and how many steps of the phase drew it before."""
        start = self._phase_start(phase)
        if len(self.streams) == 1:
            return 0, number - start
        draws = self._draws.get(phase, np.empty(0, dtype=np.int64))
        while len(draws) <= number:
            steps = np.arange(len(draws), max(1024, 2 * len(draws)))
            uniform = RowRandom(self.seed, steps).uniform(1, _SOURCE_CHANNEL)[:, 0]
            bounds = np.cumsum(self.phases[phase].sampling_probabilities)
            more = np.searchsorted(bounds, uniform, side="right")
            draws = np.concatenate((draws, more.clip(max=len(self.streams) - 1)))
        self._draws[phase] = draws  # replaced at once: the thread that reads ahead draws the same
        index = int(draws[number])
        return index, int((draws[start:number] == index).sum())

    def _rows_before(self, phase: int, index: int) -> int:
        """Return the number of rows that earlier phases took of the order of rows of a source."""
        rows = 0
        while phase and self.phases[phase].continues:
            phase -= 1
            stop, start = self.borders[phase], self._phase_start(phase)
            count = stop - start
            if len(self.streams) > 1 and count:
                self._source_of_step(stop, phase)
                count = int((self._draws[phase][start:stop] == index).sum())
            rows += count * self.phases[phase].streams[index].rows_per_step
        return rows


def equal_parts(rows: int, most: int) -> int:
    """Return the size of parts of nearly equal size that have at most `most` rows.

    >>> equal_parts(10, 4), equal_parts(10, 64)
    (4, 10)
    """
    return -(-rows // -(-rows // min(rows, most)))


def _pieces(count: int, size: int) -> list[np.ndarray]:
    """Return the positions 0 to `count` in pieces of `size`; the last piece may be smaller."""
    return np.split(np.arange(count), range(size, count, size))


def micro_batch_slices(
    batch: Batch, micro_batch_tokens: int, parallel: Parallel = SINGLE_PROCESS
) -> tuple[MicroBatchSlice, ...]:
    """Return this process's parts of a batch whose longest rows come first."""
    ids, mask = batch.input_ids, batch.attention_mask
    real = np.ones_like(ids) if mask is None else mask
    lengths = real.reshape(len(ids), -1).sum(axis=1)
    if batch.decoder_input_ids is not None:
        lengths = lengths + batch.decoder_input_ids[0].size
    groups = group_by_length(lengths, micro_batch_tokens)
    return tuple(
        MicroBatchSlice(number, int(rows[0]), int(rows[-1]) + 1, int(lengths[rows[0]]), weight)
        for number, rows, weight in parallel.shard(groups)
    )


def group_by_length(lengths: np.ndarray, micro_batch_tokens: int) -> list[np.ndarray]:
    """Return groups of examples of similar length, longest first.

    A group ends where another example would raise the group's padding above `_TOKENS_PER_CALL`, the
    cost of one more group (above twice that where the number of rows is not a multiple of
    `PAD_TO_MULTIPLE_OF`). A group also ends where its size, rows times the padded length, would
    exceed `micro_batch_tokens`. The length of an encoder-decoder's example is the sum of both
    sides, which are padded separately.

    >>> [group.tolist() for group in group_by_length(np.array([2, 900, 2]), 4096)]
    [[1], [0, 2]]
    """
    order = np.argsort(-lengths, kind="stable")
    starts, padding = [0], 0
    for end, length in enumerate(lengths[order].tolist()):
        longest = int(lengths[order[starts[-1]]])
        padding += longest - length
        size = (end + 1 - starts[-1]) * padded_length(longest)
        full = size > micro_batch_tokens and end > starts[-1]
        most = _TOKENS_PER_CALL * (1 if (end - starts[-1]) % PAD_TO_MULTIPLE_OF == 0 else 2)
        if padding > most or full:
            starts.append(end)
            padding = 0
    return np.split(order, starts[1:])
