"""Order and noise of training rows: pure functions of (seed, step).

All of it is 64-bit integer arithmetic (the splitmix64 finaliser) rather than a numpy generator:
numpy may change its streams between versions, and a resumed run must not change with them.

Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), with
Stafford's "Mix13" constants.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import Floats, Ints

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# The first integer of every key: what it is for.
_ORDER, _ROW, _SEED = (1, 2, 3)
# The largest number of rows whose order is sorted, and the rounds of the network for more rows. A
# network on few rows cannot make all of their orders.
_SORTED_ROWS, _ROUNDS = 2**16, 6


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


def permuted(seed: int, epoch: int, places: Ints, n: int) -> Ints:
    """Return the rows, of 0 to n - 1, at some places of the order of an epoch.

    Every row is at one place. Up to 65,536 rows are sorted by a hash of (seed, epoch, row), which
    takes 8 bytes per row. Larger numbers take no memory: places are mapped to rows by a Feistel
    network (Luby and Rackoff 1988) with the hash as its round function. Its domain is the next
    power of four; results outside of 0 to n - 1 are mapped again until they are inside (cycle
    walking, Black and Rogaway 2002).

    Shape: int64 [R] -> int64 [R].
    """
    if n <= _SORTED_ROWS:
        return _sorted_order(seed, epoch, n)[places]
    half = np.uint64(((n - 1).bit_length() + 1) // 2)
    keys = _key(_ORDER, seed, epoch, np.arange(_ROUNDS))
    rows = _feistel(_words(places), keys, half)
    while len(outside := np.flatnonzero(rows >= np.uint64(n))):
        rows[outside] = _feistel(rows[outside], keys, half)
    return rows.astype(np.int64)


@functools.lru_cache(maxsize=8)
def _sorted_order(seed: int, epoch: int, n: int) -> Ints:
    """Return all rows in the order of an epoch, a read-only permutation of 0 to n - 1."""
    rows = np.arange(n, dtype=np.uint64)
    order = np.argsort(_mix(_key(_ORDER, seed, epoch) + rows * _GOLDEN), kind="stable")
    order = order.astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


def _feistel(
    values: NDArray[np.uint64], keys: NDArray[np.uint64], half: np.uint64
) -> NDArray[np.uint64]:
    """Permute the integers of 2 `half` bits: each round adds a hash of one half to the other."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(key + right * _GOLDEN) & mask)
    return (left << half) | right


def rows_from(seed: int, start: int, count: int, num_rows: int) -> tuple[Ints, Ints]:
    """Return `count` rows from place `start` on in an endless sequence of epochs.

    Every epoch has its own order. The rows may cross the end of an epoch.

    Returns:
        The indices of the rows in the corpus, and their places in the endless sequence, both int64
        [R]. The places never repeat and key the noise (`RowRandom`), so that a row gets other noise
        in every epoch.
    """
    assert count > 0
    assert num_rows > 0
    places = np.arange(start, start + count, dtype=np.int64)
    epochs, offsets = np.divmod(places, num_rows)
    indices = np.empty_like(places)
    for epoch in range(start // num_rows, -(-(start + count) // num_rows)):
        in_epoch = epochs == epoch
        indices[in_epoch] = permuted(seed, epoch, offsets[in_epoch], num_rows)
    return indices, places


def contiguous_rows(step: int, text_streams: int, num_rows: int) -> tuple[Ints, Ints]:
    """Return the rows of a step: in each lane, the row that follows the row of the step before.

    A lane reads a contiguous part of the rows, an epoch is ceil(num_rows / lanes) steps. A part
    that is shorter than others ends with the first row of the next one.

    Returns as `rows_from`: lane k is row k of the step.

    >>> [contiguous_rows(step, 2, 5)[0].tolist() for step in range(4)]
    [[0, 2], [1, 3], [2, 4], [0, 2]]
    """
    numbers = np.arange(text_streams, dtype=np.int64)
    indices = numbers * num_rows // text_streams + step % -(-num_rows // text_streams)
    return indices, step * text_streams + numbers


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
