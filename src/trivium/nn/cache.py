"""Keys and values of the tokens already seen, so that a new token costs one position.

Shape letters: B rows, K key-value heads, T new positions, S all positions, H head_dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium import spec

# Where every row begins: one number, or where rows differ one each.
Start = int | tuple[int, ...]

# Tokens by which a row with sliding windows can be shortened again.
MOST_SHORTENED = 32


class Known(NamedTuple):
    """Keys and values [B, K, S, H] of the tokens that may be seen, and where the first stands."""

    keys: Tensor
    values: Tensor
    first: Start = 0


class LayerCache:
    """Room for the keys and values of one layer: two tensors [B, K, S, H], filled from the left.

    Args:
        keys: the room for keys.
        values: that for values.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.memory: tuple[Tensor, Tensor] | None = None

    def extend(self, start: Start, keys: Tensor, values: Tensor) -> Known:
        """Write [B, K, T, H] behind the `start` tokens of each row; all that is known by now.

        A row's own are the first `start` + T; what other rows need stands behind them.
        """
        rows, _, length, _ = keys.shape
        if isinstance(start, int):
            stop = start + length
            self.keys[:rows, :, start:stop] = keys
            self.values[:rows, :, start:stop] = values
        else:
            stop = latest(start) + length
            places = positions_of(start, length, keys.device)[:, None, :, None].expand(keys.shape)
            for room, new in ((self.keys, keys), (self.values, values)):
                room[:rows].scatter_(2, places, new.to(room.dtype))
        return Known(self.keys[:rows, :, :stop], self.values[:rows, :, :stop])

    def recall(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of what an encoder read, projected once.

        Texts side by side that read the same have one row together.
        """
        if self.memory is None:
            keys, values = project()
            dtype = self.keys.dtype
            # In order, heads first: every step reads them.
            self.memory = keys.to(dtype).contiguous(), values.to(dtype).contiguous()
        return self.memory

    def reorder(self, rows: Tensor, length: int, memory_rows: Tensor | None) -> None:
        """Keep the given rows and the first `length` positions of them; None: all of the memory."""
        self.keys, self.values = _moved(self.keys, rows, length), _moved(self.values, rows, length)
        if self.memory is not None and memory_rows is not None:
            keys, values = self.memory
            self.memory = keys[memory_rows], values[memory_rows]

    def join(self, other: LayerCache, rows: int, lengths: Sequence[int]) -> None:
        """Write the texts of another, of `lengths` tokens, behind the first `rows`.

        Each has a row there, or all stand in a single one, one behind another.
        """
        stop, length = rows + len(lengths), min(max(lengths), other.keys.shape[2])
        if len(other.keys) == 1 < len(lengths):
            for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
                for row, text in enumerate(theirs[0].split(lengths, 1), rows):
                    mine[row, :, : text.shape[1]] = text
            return
        self.keys[rows:stop, :, :length] = other.keys[: len(lengths), :, :length]
        self.values[rows:stop, :, :length] = other.values[: len(lengths), :, :length]
        if other.memory is not None:
            kept = self.memory if rows else None
            self.memory = other.memory if kept is None else _together(kept, other.memory)

    def leave(self, row: int, last: int, length: int) -> None:
        """Put the last row, with its `length` tokens, into the place of one that goes."""
        if row != last:
            self.keys[row, :, :length] = self.keys[last, :, :length]
            self.values[row, :, :length] = self.values[last, :, :length]
        if self.memory is not None:
            for part in self.memory:
                part[row] = part[last]
            self.memory = self.memory[0][:last], self.memory[1][:last]

    def grow(self, batch: int, max_length: int) -> None:
        """Make room for more rows and positions; what is there stays."""
        self.keys, self.values = (_grown(x, batch, max_length) for x in (self.keys, self.values))


class SlidingCache(LayerCache):
    """The cache of a layer that looks back `window` positions: it forgets what is older.

    A row's first key is that of position `firsts[row]`. There is room for twice what is kept, so
    that keys move to the left only once in a window.
    """

    def __init__(self, keys: Tensor, values: Tensor, window: int) -> None:
        super().__init__(keys, values)
        self._kept = window + MOST_SHORTENED
        self.firsts = [0] * len(keys)

    @classmethod
    def room(cls, window: int, max_length: int) -> int:
        """Positions that it needs for texts of `max_length` tokens."""
        return min(max_length, 2 * (window + MOST_SHORTENED))

    def extend(self, start: Start, keys: Tensor, values: Tensor) -> Known:
        """As in `LayerCache`; only what may still be seen comes back."""
        length, room = keys.shape[2], self.keys.shape[2]
        starts = per_row(start, len(keys))
        if length > room - self._kept and max(starts) + length - min(self.firsts) > room:
            return self._read_through(starts, keys, values)
        for row, begun in enumerate(starts):
            if begun + length - self.firsts[row] > room:
                self._forget(row, begun)
        first = _same(self.firsts)
        return super().extend(since(start, first), keys, values)._replace(first=first)

    def join(self, other: LayerCache, rows: int, lengths: Sequence[int]) -> None:
        """As in `LayerCache`."""
        assert isinstance(other, SlidingCache)
        super().join(other, rows, lengths)
        self.firsts[rows:] = other.firsts[: len(lengths)]

    def leave(self, row: int, last: int, length: int) -> None:
        """As in `LayerCache`."""
        first = self.firsts.pop()
        super().leave(row, last, length - first)
        if row != last:
            self.firsts[row] = first

    def reorder(self, rows: Tensor, length: int, memory_rows: Tensor | None) -> None:
        """As in `LayerCache`."""
        super().reorder(rows, min(length, self.keys.shape[2]), memory_rows)
        self.firsts = [self.firsts[row] for row in rows.tolist()]

    def grow(self, batch: int, max_length: int) -> None:
        """As in `LayerCache`, but no longer than it is ever needed."""
        super().grow(batch, min(max_length, 2 * self._kept))

    def _forget(self, row: int, begun: int) -> None:
        """Move what may still be seen of a row to the left."""
        first = max(self.firsts[row], begun - self._kept)
        back, count = first - self.firsts[row], begun - first
        for part in (self.keys, self.values):
            part[row, :, :count] = part[row, :, back : back + count].clone()
        self.firsts[row] = first

    def _read_through(self, starts: Sequence[int], keys: Tensor, values: Tensor) -> Known:
        """More tokens than there is room for: they are seen once, and the last of them kept."""
        if len(set(starts)) > 1 or len(set(self.firsts)) > 1:
            raise ValueError("texts of different lengths are read on a few tokens at a time.")
        begun, first = starts[0], self.firsts[0]
        held = begun - first
        known = [
            torch.cat((part[: len(new), :, :held], new), 2)
            for part, new in ((self.keys, keys), (self.values, values))
        ]
        count = min(self._kept, known[0].shape[2])
        for part, all_of_it in zip((self.keys, self.values), known):
            part[: len(keys), :, :count] = all_of_it[:, :, -count:]
        self.firsts = [begun + keys.shape[2] - count] * len(self.firsts)
        return Known(known[0], known[1], first)


class Cache:
    """The caches of a stack and how many positions they hold; the model advances it once.

    Rows may hold texts of different lengths: each is filled from the left, and what stands behind
    its end is never looked at. So a row may also be shortened, by a smaller number in `lengths`.

    Args:
        stack: the stack whose layers are cached.
        batch: rows.
        max_length: positions to make room for, in tokens.
        dtype: precision of the model. On a CPU keys and values are float32 in any case: attention
            to bfloat16 takes six times as long there.
    """

    def __init__(
        self,
        stack: spec.Stack,
        batch: int,
        max_length: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.max_length = max_length
        self.lengths = [0] * batch
        if device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
            dtype = torch.float32
        self.layers = [
            _layer(attention, batch, max_length, dtype, device) for attention in stack.attentions
        ]

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self.lengths)

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths, default=0)

    @length.setter
    def length(self, tokens: int) -> None:
        self.lengths = [tokens] * self.batch

    @property
    def start(self) -> Start:
        """Where new tokens stand: one number, or where rows differ one each."""
        return _same(self.lengths)

    def can_shorten(self, tokens: int) -> bool:
        """Whether rows may go back by so many tokens."""
        forgets = any(isinstance(layer, SlidingCache) for layer in self.layers)
        return not forgets or tokens <= MOST_SHORTENED

    def advance(self, tokens: int) -> None:
        """Every row has this many tokens more."""
        self.lengths = [length + tokens for length in self.lengths]

    def join(self, other: Cache, lengths: Sequence[int]) -> None:
        """Take over the rows of another cache, of which `lengths` tokens each are real."""
        rows = self.batch
        self._make_room(rows + len(lengths), max(lengths))
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.join(theirs, rows, lengths)
        self.lengths = [*self.lengths, *lengths]

    def leave(self, row: int) -> None:
        """Drop a row; the last one takes its place."""
        last = self.lengths.pop()
        for layer in self.layers:
            layer.leave(row, self.batch, last)
        if row < self.batch:
            self.lengths[row] = last

    def make_room(self, max_length: int, rows: int = 0) -> None:
        """Room for this many positions a row, and this many rows."""
        self._make_room(max(self.batch, rows), max_length)

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: int64 [B], fewer, as many or more than before.

        Where every so many rows in a row come from one text, as in beam search, they share what
        its encoder read.
        """
        if torch.equal(rows, torch.arange(self.batch, device=rows.device)):
            return
        memory_rows, length = self._memory_rows(rows), self.length
        self.lengths = [self.lengths[row] for row in rows.tolist()]
        for layer in self.layers:
            layer.reorder(rows, length, memory_rows)

    def _make_room(self, batch: int, max_length: int) -> None:
        """Room grows to twice what it was, so that it seldom does."""
        rows, have = len(self.layers[0].keys), self.max_length
        if batch <= rows and max_length <= have:
            return
        batch = rows if batch <= rows else max(batch, 2 * rows)
        self.max_length = have if max_length <= have else max(max_length, 2 * have)
        for layer in self.layers:
            layer.grow(batch, self.max_length)

    def _memory_rows(self, rows: Tensor) -> Tensor | None:
        """Which rows of the memory stay; None: all, as they are."""
        memory = self.layers[0].memory
        if memory is None:
            return None
        texts = len(memory[0])
        wanted = rows // (self.batch // texts)
        kept, counts = wanted.unique_consecutive(return_counts=True)
        if bool((counts != counts[0]).any()):
            return wanted
        return None if torch.equal(kept, torch.arange(texts, device=rows.device)) else kept


def _layer(
    attention: spec.Attention,
    batch: int,
    max_length: int,
    dtype: torch.dtype,
    device: torch.device,
) -> LayerCache:
    pattern, room = attention.pattern, max_length
    if isinstance(pattern, spec.Sliding):
        room = SlidingCache.room(pattern.window, max_length)
    shape = (2, batch, attention.kv_heads, room, attention.head_dim)
    keys, values = torch.zeros(shape, dtype=dtype, device=device).unbind(0)
    if isinstance(pattern, spec.Sliding):
        return SlidingCache(keys, values, pattern.window)
    return LayerCache(keys, values)


def per_row(start: Start, rows: int) -> tuple[int, ...]:
    """The same, written out for every row."""
    return (start,) * rows if isinstance(start, int) else start


@functools.lru_cache(maxsize=4)
def positions_of(start: tuple[int, ...], length: int, device: torch.device) -> Tensor:
    """Where `length` tokens of every row stand: int64 [B, T]; every layer asks for the same."""
    return on_device(start, device)[:, None] + torch.arange(length, device=device)


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Int64 [n]; a GPU is not waited for."""
    found = torch.tensor(numbers, dtype=torch.int64)
    if device.type == "cuda":
        return found.pin_memory().to(device, non_blocking=True)
    return found.to(device)


def latest(start: Start) -> int:
    """Where the row begins that begins last."""
    return start if isinstance(start, int) else max(start)


def since(start: Start, first: Start) -> Start:
    """Positions counted from a first one."""
    if isinstance(start, int):
        if isinstance(first, int):
            return start - first
        rows = len(first)
    else:
        rows = len(start)
    pairs = zip(per_row(start, rows), per_row(first, rows), strict=True)
    return _same([position - begin for position, begin in pairs])


def _same(numbers: Sequence[int]) -> Start:
    """One number where all are the same."""
    return tuple(numbers) if len(set(numbers)) > 1 else max(numbers, default=0)


def _grown(x: Tensor, batch: int, length: int) -> Tensor:
    """The same numbers with room for more: [B, K, S, H] -> [batch, K, length, H]."""
    room = x.new_zeros(batch, x.shape[1], max(length, x.shape[2]), x.shape[3])
    room[: len(x), :, : x.shape[2]] = x
    return room


def _moved(part: Tensor, rows: Tensor, length: int) -> Tensor:
    """The rows of [B, K, S, H], in the same memory where there is room, filled up to `length`."""
    filled = part[:, :, :length].index_select(0, rows)
    room = part[: len(rows)]
    if len(rows) > len(part):
        room = part.new_zeros(len(rows), *part.shape[1:])
    room[:, :, :length] = filled
    return room


def _together(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Rows below each other, the shorter with zeros behind them."""
    longest = max(first[0].shape[2], second[0].shape[2])
    keys, values = (
        torch.cat([F.pad(x, (0, 0, 0, longest - x.shape[2])) for x in pair])
        for pair in zip(first, second)
    )
    return keys, values
