"""The batches of a run. The batch of a step is a pure function of the step number.

Checkpoints therefore do not need to store any state of a loader.
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

from trivium.data.batch import PAD_TO_MULTIPLE_OF, Batch, RowBatch, round_up
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom, contiguous_rows, shuffled_rows, shuffled_rows_from
from trivium.data.rows import Rows
from trivium.objectives import AUX_LOSS, MicroBatchSlice, Objective
from trivium.text.vocabulary import Vocabulary
from trivium.train.distributed import SINGLE_PROCESS, Parallel

# The channel of `RowRandom` from which the data source of each step is drawn.
_SOURCE_CHANNEL = 1 << 20
# The fixed cost of a micro-batch in tokens, measured on a CPU with 4 layers of width 256.
_TOKENS_PER_CALL = 256
# The size of validation batches: rows of text, and tokens of labelled examples.
_VALIDATION_ROWS, _VALIDATION_TOKENS = 32, 4096
# The number of validation rows that are prepared together. To prepare a row, some objectives use
# other rows.
_VALIDATION_ROWS_TOGETHER = 1024


class _MicroBatchIndex(NamedTuple):
    """A micro-batch: its index in the step, the positions of its rows in the step, its weight.

    The weight is 1, or 0 if another process counts the losses of this micro-batch.
    """

    number: int
    positions: np.ndarray
    weight: float


@dataclass(frozen=True)
class BatchStream:
    """The batches of one data source: rows of text or labelled examples, prepared by an objective.

    Args:
        name: the name of the source in metrics; "" if the run has only one source.
        objective: the objective that prepares batches from rows.
        data: rows of text, or encoded examples.
        vocabulary: the size and the special token ids of the tokenizer.
        seed: the seed of the row order and of the noise.
        rows_per_step: the number of rows or examples in a global batch.
        separate_documents: whether tokens attend only to tokens of the same document.
        has_aux_loss: whether layers of the model add an auxiliary loss per token (`AUX_LOSS`).
        num_taken: the number of rows or examples that the run reads in total. The last step may
            therefore be smaller. If None, all steps have the same size.
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
        """The number of tokens in the longest row or example."""
        if isinstance(self.data, Rows):
            return self.data.length
        return int(self.data.lengths.max(initial=1))

    @property
    def contiguous_steps_per_epoch(self) -> int:
        """The number of steps per epoch if each row of the batch reads its own text stream."""
        return -(-len(self.data) // self.rows_per_step)

    def max_balanced_micro_batch_tokens(self, num_processes: int, max_tokens: int) -> int:
        """Return the largest micro-batch size, in tokens, that gives all processes equal work.

        The result is at most `max_tokens`.
        """
        if self.objective.rolls_out:  # the samples are sharded, not the prompts
            return max_tokens
        rows = -(-self.rows_per_step // num_processes)
        length = self.longest if isinstance(self.data, Rows) else float(self.data.lengths.mean())
        return max(1, int(equal_part_size(rows, max(1, int(max_tokens / length))) * length))

    def step(
        self,
        step: int,
        micro_batch_tokens: int,
        parallel: Parallel = SINGLE_PROCESS,
        *,
        rows_before: int = 0,
    ) -> GlobalBatch:
        """Build the batch of a step, with only the micro-batches of this process.

        Steps read consecutive rows from an endless sequence of epochs. With an objective that
        carries state, every epoch follows the order of the text. Otherwise, every epoch has its own
        random order.

        Args:
            step: the step, counted from 0.
            micro_batch_tokens: the maximum number of tokens in a micro-batch.
            parallel: the processes of the run.
            rows_before: the number of rows to skip before the first step.
        """
        if self.objective.rolls_out:  # all processes read all prompts and shard the samples
            parallel = SINGLE_PROCESS
        start = rows_before + step * self.rows_per_step
        if self.objective.carries_state:
            step = start // self.rows_per_step
            batch = self._build_contiguous_step(
                step, self.rows_per_step, micro_batch_tokens, parallel
            )
            return dataclasses.replace(
                batch, is_prefill=step % self.contiguous_steps_per_epoch == 0
            )
        indices, keys = shuffled_rows_from(self.seed, start, self.rows_per_step, len(self.data))
        left = (self.num_taken or 0) - start
        if left > 0:
            indices, keys = indices[:left], keys[:left]
        if self.objective.needs_whole_step:
            groups = [np.arange(len(indices))]
        elif isinstance(self.data, EncodedExamples):
            groups = group_by_length(self.data.lengths[indices], micro_batch_tokens)
        else:
            groups = self._split_equally(len(indices), micro_batch_tokens)
        parts = self._shard_micro_batches(groups, parallel)
        return self._build_global_batch(indices, keys, parts, micro_batch_tokens)

    def validation_batches(
        self, tokens: int, limit: int | None = None, parallel: Parallel = SINGLE_PROCESS
    ) -> Iterator[GlobalBatch]:
        """Yield the validation batches, with only the micro-batches of this process.

        Every call yields the same rows with the same noise. The rows are spread over the whole
        data. If the objective carries state, however, they are the first rows of every text stream.

        Args:
            tokens: the approximate number of tokens in all batches of all processes.
            limit: the maximum number of rows or examples; None for no maximum.
            parallel: the processes of the run.
        """
        size = len(self.data)
        mean = self.data.length if isinstance(self.data, Rows) else self.data.lengths.mean()
        count = min(size, max(1, int(tokens / mean)), limit or size)
        if self.objective.carries_state:
            text_streams = min(self.rows_per_step, count)
            for number in range(-(-count // text_streams)):
                yield self._build_contiguous_step(
                    number, text_streams, _VALIDATION_TOKENS, parallel
                )
            return
        if isinstance(self.data, Rows):
            indices = np.sort(shuffled_rows(0, 0, np.arange(count), size))
        else:
            indices = np.arange(count) * size // count
        if self.objective.needs_whole_step:
            groups = _split_row_positions(count, self.rows_per_step)
        elif isinstance(self.data, EncodedExamples):
            groups = group_by_length(self.data.lengths[indices], _VALIDATION_TOKENS)
        else:
            for piece in _split_row_positions(count, _VALIDATION_ROWS_TOGETHER):
                parts = self._shard_micro_batches(
                    _split_row_positions(len(piece), _VALIDATION_ROWS), parallel
                )
                rows = indices[piece]
                yield self._build_global_batch(rows, rows, parts, _VALIDATION_TOKENS)
            return
        for part in self._shard_micro_batches(groups, parallel):
            yield self._build_global_batch(indices, indices, [part], _VALIDATION_TOKENS)

    def _build_contiguous_step(
        self, step: int, text_streams: int, micro_batch_tokens: int, parallel: Parallel
    ) -> GlobalBatch:
        """Build the batch of a step for an objective that carries state.

        The text is split into `text_streams` contiguous streams, and the step reads one row from
        each of them. The batch contains only the micro-batches of this process, which always reads
        the same text streams.
        """
        indices, keys = contiguous_rows(step, text_streams, len(self.data))
        parts = self._shard_micro_batches(
            self._split_equally(text_streams, micro_batch_tokens), parallel
        )
        batch = self._build_global_batch(indices, keys, parts, micro_batch_tokens)
        return dataclasses.replace(batch, text_streams=tuple(part.positions for part in parts))

    def _split_equally(self, num_rows: int, micro_batch_tokens: int) -> list[np.ndarray]:
        """Split the row positions 0 to `num_rows` - 1 into micro-batches of nearly equal size."""
        size = equal_part_size(num_rows, max(1, micro_batch_tokens // self.longest))
        return _split_row_positions(num_rows, size)

    def _shard_micro_batches(
        self, positions: Sequence[np.ndarray], parallel: Parallel
    ) -> list[_MicroBatchIndex]:
        """Select this process's micro-batches from all micro-batches of a step.

        `positions` contains the row positions of every micro-batch of the step. If the objective
        needs the whole step, all processes compute every micro-batch together, but only one process
        counts its losses. Otherwise, the micro-batches are sharded among the processes.
        """
        if not self.objective.needs_whole_step:
            return [_MicroBatchIndex(*part) for part in parallel.shard(positions)]
        size, rank = parallel.data_parallel_size, parallel.data_parallel_rank
        return [
            _MicroBatchIndex(n, rows, float(n % size == rank)) for n, rows in enumerate(positions)
        ]

    def _build_global_batch(
        self,
        indices: np.ndarray,
        keys: np.ndarray,
        micro_batches: Sequence[_MicroBatchIndex],
        micro_batch_tokens: int,
    ) -> GlobalBatch:
        """Prepare the micro-batches of this process, and count their labels and tokens.

        Args:
            indices: the indices of the step's rows in the data.
            keys: the noise keys of these rows.
            micro_batches: the indices, row positions and weights of this process's micro-batches.
            micro_batch_tokens: the maximum number of tokens in a micro-batch.
        """
        batches, num_tokens = [], 0
        loss_denominators: Counter[str] = Counter()
        for part, (rows, batch) in zip(
            micro_batches, self._prepare_micro_batches(indices, keys, micro_batches), strict=True
        ):
            batches.append(batch)
            counted = int(part.weight)
            num_tokens += counted * rows.num_tokens
            for term, count in self.objective.loss_denominators(batch).items():
                loss_denominators[term] += counted * count
            if self.has_aux_loss:
                loss_denominators[AUX_LOSS] += counted * batch.num_tokens
        weights = tuple((part.number, part.weight) for part in micro_batches)
        return GlobalBatch(
            self, tuple(batches), weights, micro_batch_tokens, dict(loss_denominators), num_tokens
        )

    def _prepare_micro_batches(
        self, indices: np.ndarray, keys: np.ndarray, micro_batches: Sequence[_MicroBatchIndex]
    ) -> Iterator[tuple[RowBatch, Batch]]:
        """Yield each micro-batch as a pair: its rows of data, and the batch made by the objective.

        If rows of a step depend on each other, all rows are prepared together and then sliced.
        """
        if not self.objective.prepares_steps:
            for part in micro_batches:
                rows = self._read_rows(indices[part.positions])
                yield rows, self._prepare_batch(rows, keys[part.positions])
            return
        rows = self._read_rows(indices)
        batch = self._prepare_batch(rows, keys)
        for part in micro_batches:
            ends = int(part.positions[0]), int(part.positions[-1]) + 1
            yield rows.slice_rows(*ends), batch.slice_rows(*ends)

    def _read_rows(self, indices: np.ndarray) -> RowBatch:
        """Read the rows or examples with these indices from the data."""
        if isinstance(self.data, EncodedExamples):
            return self.data.take(indices, multiple=PAD_TO_MULTIPLE_OF)
        with_documents = self.separate_documents or self.objective.needs_documents
        return self.data.take(indices, with_documents=with_documents)

    def _prepare_batch(self, rows: RowBatch, keys: np.ndarray) -> Batch:
        """Apply the objective to rows of data, with noise determined by the keys of the rows."""
        return self.objective.prepare(rows, RowRandom(self.seed, keys), self.vocabulary)


@dataclass(frozen=True)
class GlobalBatch:
    """The batch of a step, with only the micro-batches of one process.

    All rows of a step are from the same data source.

    Args:
        stream: the data source.
        micro_batches: the micro-batches of this process. Each has at most `micro_batch_tokens`
            tokens, or a single longer row or example.
        micro_batch_weights: for each micro-batch, its index in the step and its weight. The weight
            is 1, or 0 if another process counts the losses of the micro-batch. All processes need
            the same number of micro-batches, so some are repeated with weight 0.
        micro_batch_tokens: the maximum number of tokens in a micro-batch.
        loss_denominators: the number of labels per loss term. It counts these micro-batches or,
            after `all_reduce_counts`, the whole step.
        num_tokens: the number of tokens without padding. It counts these micro-batches or, after
            `all_reduce_counts`, the whole step.
        text_streams: for each micro-batch, the indices of the text streams that its rows continue;
            only for objectives that carry state.
        is_prefill: whether all text streams start at the beginning of their text.
        num_iterations: the number of optimizer steps on this batch.
    """

    stream: BatchStream
    micro_batches: tuple[Batch, ...]
    micro_batch_weights: tuple[tuple[int, float], ...]
    micro_batch_tokens: int
    loss_denominators: dict[str, int]
    num_tokens: int
    text_streams: tuple[np.ndarray, ...] = ()
    is_prefill: bool = False
    num_iterations: int = 1

    @property
    def sizes(self) -> list[int]:
        """The number of rows in each forward pass."""
        if not self.stream.objective.needs_whole_step:
            return [one.num_rows for one in self.micro_batches]
        slices = [split_into_slices(one, self.micro_batch_tokens) for one in self.micro_batches]
        return [cut.stop - cut.start for each in slices for cut in each]

    def all_reduce_counts(self, parallel: Parallel) -> GlobalBatch:
        """Sum the label and token counts over all processes. All processes must call this method.

        Returns a batch with the summed counts.
        """
        num_tokens, *counts = parallel.all_reduce_sum(
            self.num_tokens, *self.loss_denominators.values()
        )
        loss_denominators = dict(zip(self.loss_denominators, counts, strict=True))
        return dataclasses.replace(self, loss_denominators=loss_denominators, num_tokens=num_tokens)


@dataclass(frozen=True)
class LoaderPhase:
    """The data sources of one phase of the run.

    Args:
        streams: the batches of each source; at least one source.
        sampling_weights: the sampling weight of each source; they need not sum to 1.
        continues: whether the phase continues after the last row of the previous phase. Otherwise,
            it starts a new row order.
    """

    streams: Sequence[BatchStream]
    sampling_weights: Sequence[float]
    continues: bool = False

    @property
    def sampling_probabilities(self) -> list[float]:
        """The sampling probability of each source: its weight divided by the sum of all weights."""
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
            probability * size
            for probability, size in zip(self.sampling_probabilities, sizes, strict=True)
        )

    @property
    def steps_per_epoch(self) -> float:
        """The number of steps per epoch.

        Without labelled sources, this is the number of steps in which the text is read once. With
        labelled sources, it is the number of steps in which every labelled example is read once;
        this includes the steps on text.
        """
        labelled = [stream.objective.labelled for stream in self.streams]
        counted = [i for i, is_labelled in enumerate(labelled) if is_labelled or not any(labelled)]
        steps = sum(len(self.streams[i].data) / self.streams[i].rows_per_step for i in counted)
        return steps / sum(self.sampling_probabilities[i] for i in counted)


@dataclass
class Loader:
    """The batches of all steps of a run. Each step draws its batch from one data source.

    Args:
        streams: the batches of each source in the last phase; at least one source.
        sampling_weights: the sampling weight of each source; they need not sum to 1.
        seed: the seed for drawing sources.
        micro_batch_tokens: the maximum number of tokens in one forward pass, including padding.
        parallel: the processes of the run. Each process prepares its own micro-batches.
        earlier: the phases before the last one.
        continues: whether the rows of the last phase continue after the last row of the previous
            phase.
        borders: for each earlier phase, the step at which it ends. Phases that have not ended yet
            may be missing.
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

    def phase_index(self, step: int) -> int:
        """Return the index of the phase that contains a step.

        A phase whose end is not known yet continues indefinitely.
        """
        return bisect.bisect_right(self.borders, step)

    def step(self, step: int, parallel: Parallel | None = None) -> GlobalBatch:
        """Build the batch of a step, with only the micro-batches of this process.

        If `parallel` is given, build the batch of that process instead.
        """
        phase = self.phase_index(step)
        index, source_step = self._draw_source(step, phase)
        return (
            self.phases[phase]
            .streams[index]
            .step(
                source_step,
                self.micro_batch_tokens,
                parallel or self.parallel,
                rows_before=self._count_earlier_rows(phase, index),
            )
        )

    def halve_micro_batches(self, step: int) -> GlobalBatch:
        """Halve the micro-batch size for all following batches. Returns the batch of `step`.

        The size is halved until `step` has more micro-batches than before, or one row per
        micro-batch. A run that starts with the reduced size would have the same micro-batches.
        """
        before = len(self.step(step).sizes)
        while True:
            self.micro_batch_tokens = max(1, self.micro_batch_tokens // 2)
            batch = self.step(step)
            if len(batch.sizes) > before or max(batch.sizes) == 1:
                return batch

    def steps_from(self, first_step: int) -> Iterator[GlobalBatch]:
        """Yield the batches of all steps, starting at `first_step`, with prefetching.

        A thread prepares each batch during the previous step. If a phase ends or the micro-batch
        size is reduced in the meantime, the batch is prepared again. The label and token counts of
        each batch are those of the whole step. All processes must iterate together.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as worker:
            ahead, phase = worker.submit(self.step, first_step), self.phase_index(first_step)
            for following in itertools.count(first_step + 1):
                batch = ahead.result()
                is_smaller = batch.micro_batch_tokens != self.micro_batch_tokens
                if is_smaller or phase != self.phase_index(following - 1):
                    batch = self.step(following - 1)
                ahead, phase = worker.submit(self.step, following), self.phase_index(following)
                yield batch.all_reduce_counts(self.parallel)

    def steps_per_epoch(self) -> float:
        """Return the number of steps per epoch in the last phase."""
        return self.phases[-1].steps_per_epoch

    def epochs_at(self, step: int) -> float:
        """Return the number of epochs completed before a step, including fractions."""
        epochs = 0.0
        for index, phase in enumerate(self.phases[: self.phase_index(step) + 1]):
            end = min([step, *self.borders[index : index + 1]])
            epochs += (end - self._first_step_of_phase(index)) / phase.steps_per_epoch
        return epochs

    def _first_step_of_phase(self, phase: int) -> int:
        """Return the first step of the phase with this index."""
        return self.borders[phase - 1] if phase else 0

    def _draw_source(self, step: int, phase: int) -> tuple[int, int]:
        """Draw the data source of a step at random, as a function of the seed and the step.

        Returns the index of the source, and the number of earlier steps of this phase that used
        this source.
        """
        start = self._first_step_of_phase(phase)
        if len(self.streams) == 1:
            return 0, step - start
        draws = self._draws.get(phase, np.empty(0, dtype=np.int64))
        while len(draws) <= step:
            steps = np.arange(len(draws), max(1024, 2 * len(draws)))
            uniform = RowRandom(self.seed, steps).uniform(1, _SOURCE_CHANNEL)[:, 0]
            bounds = np.cumsum(self.phases[phase].sampling_probabilities)
            more = np.searchsorted(bounds, uniform, side="right")
            draws = np.concatenate((draws, more.clip(max=len(self.streams) - 1)))
        self._draws[phase] = draws  # one assignment, since the prefetching thread draws them, too
        index = int(draws[step])
        return index, int((draws[start:step] == index).sum())

    def _count_earlier_rows(self, phase: int, source_index: int) -> int:
        """Return the number of rows of a source that earlier phases read in the same row order."""
        rows = 0
        while phase and self.phases[phase].continues:
            phase -= 1
            stop, start = self.borders[phase], self._first_step_of_phase(phase)
            count = stop - start
            if len(self.streams) > 1 and count:
                self._draw_source(stop, phase)
                count = int((self._draws[phase][start:stop] == source_index).sum())
            rows += count * self.phases[phase].streams[source_index].rows_per_step
        return rows


def equal_part_size(num_rows: int, max_rows: int) -> int:
    """Return the number of rows per part when rows are split into parts of nearly equal size.

    Each part has at most `max_rows` rows; the last part may be smaller.

    >>> equal_part_size(10, 4), equal_part_size(10, 64)
    (4, 10)
    """
    return -(-num_rows // -(-num_rows // min(num_rows, max_rows)))


def _split_row_positions(num_rows: int, chunk_size: int) -> list[np.ndarray]:
    """Split the row positions 0 to `num_rows` - 1 into chunks; the last one may be smaller."""
    return np.split(np.arange(num_rows), range(chunk_size, num_rows, chunk_size))


def split_into_slices(
    batch: Batch, micro_batch_tokens: int, parallel: Parallel = SINGLE_PROCESS
) -> tuple[MicroBatchSlice, ...]:
    """Split a batch into slices that fit in a forward pass. Returns this process's slices.

    The rows of the batch must be sorted by length, longest first.
    """
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
    """Group examples of similar length into micro-batches, longest first.

    Returns the indices of the examples in each group. Examples are added to a group in order of
    length, until one of two limits would be exceeded:

    - The group's size (rows times padded length) is at most `micro_batch_tokens`.
    - The group's padding is at most `_TOKENS_PER_CALL`, the cost of one more group. The limit is
      twice as high while the number of rows is not a multiple of `PAD_TO_MULTIPLE_OF`.

    For an encoder-decoder, the length of an example is the sum of the source and the target length,
    which are padded separately.

    >>> [group.tolist() for group in group_by_length(np.array([2, 900, 2]), 4096)]
    [[1], [0, 2]]
    """
    order = np.argsort(-lengths, kind="stable")
    starts, padding = [0], 0
    for end, length in enumerate(lengths[order].tolist()):
        longest = int(lengths[order[starts[-1]]])
        padding += longest - length
        size = (end + 1 - starts[-1]) * round_up(longest)
        full = size > micro_batch_tokens and end > starts[-1]
        most = _TOKENS_PER_CALL * (1 if (end - starts[-1]) % PAD_TO_MULTIPLE_OF == 0 else 2)
        if padding > most or full:
            starts.append(end)
            padding = 0
    return np.split(order, starts[1:])
