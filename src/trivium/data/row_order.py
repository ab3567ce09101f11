"""Order and noise of training rows: pure functions of (seed, step).

All of it is 64-bit integer arithmetic (the splitmix64 finaliser) rather than a numpy generator:
numpy may change its streams between versions, and a resumed run must not change with them.

Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), with
Stafford's "Mix13" constants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import Floats, Ints

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# The first integer of every key: what it is for.
_ORDER, _ROW, _SEED = (1, 2, 3)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser: a bijection of 64-bit integers that avalanches."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def _words(values: ArrayLike) -> NDArray[np.uint64]:
    """Integers as an array of 64-bit words, at least one-dimensional; negatives wrap around."""
    if isinstance(values, int):
        return np.array([values % 2**64], dtype=np.uint64)
    return np.atleast_1d(np.asarray(values)).astype(np.int64).view(np.uint64)


def _key(*parts: ArrayLike) -> NDArray[np.uint64]:
    """One 64-bit key from several integers, each absorbed in turn; parts may be arrays."""
    key = np.array([_GOLDEN])
    for part in parts:
        word = _words(part)
        key = _mix(key + (word + np.uint64(1)) * _GOLDEN)
    return key


def derived_seed(seed: int, *numbers: int) -> int:
    """A 64-bit seed of its own for every (seed, numbers), such as a source or a micro-batch."""
    return int(_key(_SEED, seed, *numbers)[0])


def permutation(seed: int, epoch: int, n: int) -> Ints:
    """The order in which epoch `epoch` visits `n` rows: a read-only permutation of 0..n-1.

    Rows are sorted by a hash of (seed, epoch, row). Memory is 8 bytes per row (24 while sorting),
    time about 0.1 microseconds per row; the last two epochs of every (seed, n) are cached.
    """
    return _cached_orders(seed, n)(epoch)


@functools.lru_cache(maxsize=64)
def _cached_orders(seed: int, n: int) -> Callable[[int], Ints]:
    @functools.lru_cache(maxsize=2)
    def order_of(epoch: int) -> Ints:
        rows = np.arange(n, dtype=np.uint64)
        order = np.argsort(_mix(_key(_ORDER, seed, epoch) + rows * _GOLDEN), kind="stable")
        order = order.astype(np.int64, copy=False)
        order.flags.writeable = False
        return order

    return order_of


def rows_of_step(seed: int, step: int, rows_per_step: int, num_rows: int) -> tuple[Ints, Ints]:
    """The rows of step `step` (counted from 0) in an endless sequence of epochs.

    Returns `(indices, stream_indices)`, both int64 [R]: row numbers in the corpus, and in the
    endless sequence. The latter never repeat and key the noise (`RowRandom`), so that a row gets
    other noise in every epoch. A step may cross the end of an epoch.
    """
    assert rows_per_step > 0
    assert num_rows > 0
    start, stop = step * rows_per_step, (step + 1) * rows_per_step
    stream_indices = np.arange(start, stop, dtype=np.int64)
    epochs, offsets = np.divmod(stream_indices, num_rows)
    indices = np.empty_like(stream_indices)
    for epoch in range(start // num_rows, -(-stop // num_rows)):
        in_epoch = epochs == epoch
        indices[in_epoch] = permutation(seed, epoch, num_rows)[offsets[in_epoch]]
    return indices, stream_indices


def lanes_of_step(step: int, lanes: int, num_rows: int) -> tuple[Ints, Ints]:
    """The rows of a step, of which each is the next one in the text after that of the step before.

    A lane reads a contiguous part of the rows, an epoch is ceil(num_rows / lanes) steps. A part
    that is shorter than others ends with the first row of the next one.

    Returns as `rows_of_step`: lane k is row k of the step.

    >>> [lanes_of_step(step, 2, 5)[0].tolist() for step in range(4)]
    [[0, 2], [1, 3], [2, 4], [0, 2]]
    """
    numbers = np.arange(lanes, dtype=np.int64)
    indices = numbers * num_rows // lanes + step % -(-num_rows // lanes)
    return indices, step * lanes + numbers


class RowRandom:
    """Noise for B rows, each row's from (seed, its stream index, channel) alone.

    The noise of a row does not depend on the other rows of the batch, on B, or on the number of
    columns: column t is the same whether T or more are drawn. Use a `channel` of its own for every
    independent decision; the same channel always gives the same numbers.
    """

    def __init__(self, seed: int, stream_indices: ArrayLike) -> None:
        self.seed = seed
        self.stream_indices = np.atleast_1d(np.asarray(stream_indices, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.stream_indices)

    def rows(self, start: int, stop: int) -> RowRandom:
        """The noise of rows `start` up to `stop` only."""
        return RowRandom(self.seed, self.stream_indices[start:stop])

    def bits(self, num_columns: int, channel: int) -> NDArray[np.uint64]:
        """64 random bits for every row and column, uint64 [B, T]."""
        keys = _key(_ROW, self.seed, channel, self.stream_indices)
        columns = np.arange(1, num_columns + 1, dtype=np.uint64) * _GOLDEN
        return _mix(keys[:, None] + columns)

    def uniform(self, num_columns: int, channel: int) -> Floats:
        """Uniform numbers in [0, 1) with 53 random bits, float64 [B, T]."""
        return (self.bits(num_columns, channel) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, high: int, num_columns: int, channel: int) -> Ints:
        """Uniform integers in [0, high), int64 [B, T]; `high` at most 2**32.

        The top 32 bits times `high`, shifted down: no value is off by more than high / 2**32.
        """
        assert 0 < high <= 2**32
        top = self.bits(num_columns, channel) >> np.uint64(32)
        return ((top * np.uint64(high)) >> np.uint64(32)).astype(np.int64)
