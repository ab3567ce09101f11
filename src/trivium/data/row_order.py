"""Shuffled order of the training rows, and random numbers for each row.

Both are pure functions of the seed and the position in training. They are computed with 64-bit
integers (the splitmix64 finaliser). A numpy generator is not used: a resumed run must reproduce the
same numbers, and numpy may change its random streams between versions.

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
# The first integer of every key, so that keys for different purposes never coincide.
_ORDER, _ROW, _SEED = (1, 2, 3)
# The maximum number of rows that are sorted, and the number of rounds of the Feistel network for
# more rows. For few rows, the network could not produce every order.
_SORTED_ROWS, _ROUNDS = 2**16, 6


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the splitmix64 finaliser, a bijective hash of 64-bit integers."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def _to_uint64(values: ArrayLike) -> NDArray[np.uint64]:
    """Convert integers to a uint64 array, at least 1-D. Negative integers wrap around."""
    if isinstance(values, int):
        return np.array([values % 2**64], dtype=np.uint64)
    return np.atleast_1d(np.asarray(values)).astype(np.int64).view(np.uint64)


def _make_key(*parts: ArrayLike) -> NDArray[np.uint64]:
    """Hash several integers to one key. Returns the key as a uint64 array of shape [1].

    If a part is an array [N], the result is an array of N keys.
    """
    key = np.array([_GOLDEN])
    for part in parts:
        word = _to_uint64(part)
        key = _mix_bits(key + (word + np.uint64(1)) * _GOLDEN)
    return key


def derived_seed(seed: int, *numbers: int) -> int:
    """Return a 64-bit seed derived from `seed` and `numbers`.

    The numbers are, for example, the indices of a source and a step. Different numbers give
    different, independent seeds.
    """
    return int(_make_key(_SEED, seed, *numbers)[0])


def shuffled_rows(seed: int, epoch: int, positions: Ints, num_rows: int) -> Ints:
    """Return the indices of the rows at the given positions in the shuffled order of an epoch.

    Each of the `num_rows` rows occurs exactly once per epoch. A corpus of up to 65,536 rows is
    sorted by a hash of (seed, epoch, row), which takes 8 bytes per row. In a larger corpus, a
    Feistel network (Luby and Rackoff 1988) maps each position to a row, without extra memory. The
    hash is its round function, and its domain is the next power of four. If a result is not a row
    index, the network is applied again until the result is one (cycle walking, Black and Rogaway
    2002).

    Args:
        seed: the seed of the run.
        epoch: the epoch, from 0.
        positions: int64 [R], the positions in the shuffled order, from 0 to `num_rows` - 1.
        num_rows: the number of rows in the corpus.

    Returns:
        The row indices, int64 [R].
    """
    if num_rows <= _SORTED_ROWS:
        return _shuffle_rows(seed, epoch, num_rows)[positions]
    half = np.uint64(((num_rows - 1).bit_length() + 1) // 2)
    keys = _make_key(_ORDER, seed, epoch, np.arange(_ROUNDS))
    rows = _apply_feistel_network(_to_uint64(positions), keys, half)
    while len(outside := np.flatnonzero(rows >= np.uint64(num_rows))):
        rows[outside] = _apply_feistel_network(rows[outside], keys, half)
    return rows.astype(np.int64)


@functools.lru_cache(maxsize=8)
def _shuffle_rows(seed: int, epoch: int, num_rows: int) -> Ints:
    """Return the shuffled row indices of an epoch as a read-only array, int64 [num_rows]."""
    rows = np.arange(num_rows, dtype=np.uint64)
    order = np.argsort(_mix_bits(_make_key(_ORDER, seed, epoch) + rows * _GOLDEN), kind="stable")
    order = order.astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


def _apply_feistel_network(
    values: NDArray[np.uint64], keys: NDArray[np.uint64], half_bits: np.uint64
) -> NDArray[np.uint64]:
    """Permute the integers from 0 to 2^(2 h) - 1 with a Feistel network, where h is `half_bits`.

    In each round, one half of the bits is XORed with a hash of the other half and a key. Returns
    the permuted values, in the shape of `values`.
    """
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = values >> half_bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix_bits(key + right * _GOLDEN) & mask)
    return (left << half_bits) | right


def shuffled_rows_from(seed: int, start: int, count: int, num_rows: int) -> tuple[Ints, Ints]:
    """Return `count` consecutive rows of an endless sequence of shuffled epochs.

    The first row is at position `start` of the sequence. Every epoch has a different order. The
    rows may continue into the next epoch.

    Returns:
        The indices of the rows in the corpus, and their positions in the endless sequence, both
        int64 [count]. Positions never repeat. A row therefore gets different random numbers in
        every epoch if its position is the key of `RowRandom`.
    """
    assert count > 0
    assert num_rows > 0
    places = np.arange(start, start + count, dtype=np.int64)
    epochs, offsets = np.divmod(places, num_rows)
    indices = np.empty_like(places)
    for epoch in range(start // num_rows, -(-(start + count) // num_rows)):
        in_epoch = epochs == epoch
        indices[in_epoch] = shuffled_rows(seed, epoch, offsets[in_epoch], num_rows)
    return indices, places


def contiguous_rows(step: int, text_streams: int, num_rows: int) -> tuple[Ints, Ints]:
    """Return the rows of a step for stateful training, one row per text stream.

    Each text stream reads a contiguous section of the corpus, one row per step. An epoch takes
    ceil(num_rows / text_streams) steps. A stream with a shorter section reads the first row of the
    next section in the last step of the epoch.

    Returns:
        The indices of the rows in the corpus, and their positions in the endless sequence (see
        `shuffled_rows_from`), both int64 [text_streams]. Element k belongs to text stream k.

    >>> [contiguous_rows(step, 2, 5)[0].tolist() for step in range(4)]
    [[0, 2], [1, 3], [2, 4], [0, 2]]
    """
    streams = np.arange(text_streams, dtype=np.int64)
    indices = streams * num_rows // text_streams + step % -(-num_rows // text_streams)
    return indices, step * text_streams + streams


class RowRandom:
    """Reproducible random numbers for the B rows of a batch.

    The numbers of a row depend only on the seed, the key of the row and the channel. They do not
    depend on the other rows or on B. If more columns are requested, the first columns stay the
    same. Equal channels give equal numbers, so use a different `channel` for each independent
    decision.

    Args:
        seed: the seed, usually one per step.
        stream_indices: int64 [B], a key for each row, such as its position from
            `shuffled_rows_from`.
    """

    def __init__(self, seed: int, stream_indices: ArrayLike) -> None:
        self.seed = seed
        self.stream_indices = np.atleast_1d(np.asarray(stream_indices, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.stream_indices)

    def slice_rows(self, start: int, stop: int) -> RowRandom:
        """Return the random numbers of only the rows from `start` to `stop` - 1."""
        return RowRandom(self.seed, self.stream_indices[start:stop])

    def bits(self, num_columns: int, channel: int) -> NDArray[np.uint64]:
        """Return 64 random bits for every row and column, uint64 [B, T] with T = `num_columns`."""
        keys = _make_key(_ROW, self.seed, channel, self.stream_indices)
        columns = np.arange(1, num_columns + 1, dtype=np.uint64) * _GOLDEN
        return _mix_bits(keys[:, None] + columns)

    def uniform(self, num_columns: int, channel: int) -> Floats:
        """Return uniform random numbers in [0, 1), float64 [B, T] with T = `num_columns`.

        Each number has 53 random bits.
        """
        return (self.bits(num_columns, channel) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, high: int, num_columns: int, channel: int) -> Ints:
        """Return uniform random integers in [0, high), int64 [B, T] with T = `num_columns`.

        `high` is at most 2**32. An integer is the top 32 random bits, multiplied by `high`, divided
        by 2**32 and rounded down. The probabilities of the integers are equal up to a relative
        error of high / 2**32.
        """
        assert 0 < high <= 2**32
        top = self.bits(num_columns, channel) >> np.uint64(32)
        return ((top * np.uint64(high)) >> np.uint64(32)).astype(np.int64)
