"""The cache of a model for decoding: the states of its layers, in one slot per text.

A text occupies one slot from its first token to its last. A slot is filled from the left and never
moves. Positions after the length of a slot are never read.

Shape letters: B rows of a forward pass, T new positions, S cached positions, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.errors import SpecError

KeyValueProjection = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class CacheSlice:
    """The slots and positions of a cache that one forward pass writes to.

    Args:
        rows: the slots, int64 [B]; a slice if the slots are adjacent, which is read without a copy.
        start: the number of tokens in each slot before the pass: an int if it is equal for all
            slots, else int64 [B].
        length: T, the number of new positions per row, padding included.
        new: int64 [B], the number of new tokens per row, without padding; None: no padding.
        end: S, the number of positions to read from each slot.
        prefill_lengths: int64 [B], the number of tokens in the first pass (the prefill) of each
            slot.
    """

    rows: slice | Tensor
    start: int | Tensor
    length: int
    new: Tensor | None
    end: int
    prefill_lengths: Tensor | None = None

    @property
    def is_prefill(self) -> bool:
        """Whether the slots were empty before the pass."""
        return isinstance(self.start, int) and self.start == 0

    def columns(self, device: torch.device) -> Tensor:
        """Return the columns of the new positions in their slots: int64 [1 or B, T]."""
        start = self.start if isinstance(self.start, int) else self.start[:, None]
        return start + torch.arange(self.length, device=device)[None]

    def is_token(self, device: torch.device) -> Tensor | None:
        """Return the padding mask of the new positions, bool [B, T]; None: no padding."""
        if self.new is None:
            return None
        return torch.arange(self.length, device=device) < self.new[:, None]

    def last(self, x: Tensor, count: int) -> Tensor:
        """Return the vectors of the last `count` tokens of each row, without padding.

        `x` contains the vectors of `count` earlier tokens, followed by those of the T new
        positions. Shape: [B, count + T, D] -> [B, count, D].
        """
        if self.new is None:
            return x[:, x.shape[1] - count :]
        at = self.new[:, None] + torch.arange(count, device=x.device)
        return x.take_along_dim(at[..., None], 1)

    def slots(self, batch: int, device: torch.device) -> Tensor:
        """Return the indices of the slots as int64 [B]."""
        if isinstance(self.rows, Tensor):
            return self.rows
        first = self.rows.start or 0
        return torch.arange(first, first + batch, device=device)


class State:
    """The cached state of one layer: tensors [slots, ...], which are zero for an empty slot."""

    max_crop = 0
    """The maximum number of tokens that `Cache.crop` can remove from the end of a slot."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def read(self, cache_slice: CacheSlice) -> tuple[Tensor, ...]:
        """Return copies of the state in the slots of a pass, each [B, ...]."""
        return tuple(kept[cache_slice.rows].clone() for kept in self.tensors)

    def write(self, cache_slice: CacheSlice, *new: Tensor) -> None:
        """Write new tensors [B, ...] to the slots of a pass, in the dtype of the state.

        The tensors are detached, as in truncated backpropagation through time.
        """
        for kept, part in zip(self.tensors, new, strict=True):
            kept[cache_slice.rows] = part.detach().to(kept.dtype)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the state of the slots `source` to the slots `target`.

        `length` is the maximum number of tokens in the slots that are copied.
        """
        for tensor in self.tensors:
            tensor[target] = tensor[source]

    def free(self, slot: int) -> None:
        """Reset the state of a slot to zeros."""
        for tensor in self.tensors:
            tensor[slot] = 0


class KVCache(State):
    """A KV cache: the keys and values of all tokens, [slots, K, length + 1, H].

    Padding that would be written after the end of a slot is written to the last position.
    """

    def __init__(self, slots: int, length: int, heads: int, width: int, like: Tensor) -> None:
        super().__init__(*(like.new_zeros(slots, heads, length + 1, width) for _ in range(2)))
        self.max_crop = length

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """Return the columns of the keys that `append` returns: int64 [1 or B, S].

        `new` contains the columns of the new positions, [1 or B, T].
        """
        if cache_slice.is_prefill:
            return new
        return torch.arange(cache_slice.end, device=new.device)[None]

    def append(self, cache_slice: CacheSlice, *new: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, K, T, H] to the slots.

        Returns:
            The keys and values [B, K, S, H] that the new tokens can attend to. If the slots were
            empty, these are the new ones in the dtype of the cache. Otherwise they are read from
            the slots, as views if the slots are adjacent.
        """
        rows, start, length = cache_slice.rows, cache_slice.start, cache_slice.length
        last = self.tensors[0].shape[2] - 1
        key, value = (part.to(self.tensors[0].dtype) for part in new)
        if isinstance(start, int) and isinstance(rows, slice) and start + length <= last:
            for kept, part in zip(self.tensors, (key, value), strict=True):
                kept[rows, :, start : start + length] = part
        else:
            columns = cache_slice.columns(key.device).clamp(max=last)
            _write_columns(self.tensors, cache_slice, columns, key, value)
        if cache_slice.is_prefill:
            return key, value
        keys, values = (kept[rows, :, : cache_slice.end] for kept in self.tensors)
        return keys, values

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """See `State.copy`."""
        for tensor in self.tensors:
            tensor[target, :, :length] = tensor[source, :, :length]

    def free(self, slot: int) -> None:
        """Do nothing: positions after the length of a slot are never read."""


class RollingKVCache(State):
    """A rolling KV cache for sliding-window attention, [slots, K, length + 1, H].

    Column c of a text is stored at index c mod `length`. The buffer holds the last `window` tokens
    and `SPARE` more, so that `Cache.crop` can remove up to `SPARE` tokens. A pass of at most
    `SPARE` tokens writes its keys and values first and then reads the buffer. A longer pass would
    overwrite keys that its first tokens attend to: it reads the old buffer (unless that is empty)
    followed by its own keys and values, and writes afterwards. Keys and values that are not stored
    are written to the last position.

    Source: Jiang et al. 2023, section 2, the rolling buffer cache.
    """

    SPARE = 64
    """The maximum number of tokens that `Cache.crop` can remove from the end of a slot."""

    def __init__(self, slots: int, window: int, heads: int, width: int, like: Tensor) -> None:
        self.length = window + self.SPARE
        super().__init__(*(like.new_zeros(slots, heads, self.length + 1, width) for _ in range(2)))
        self.max_crop = self.SPARE

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """See `KVCache.columns`. Unused entries get a column later than all others (2^30)."""
        is_long = cache_slice.length > self.SPARE
        last = (new[:, :1] if is_long else self._end_columns(cache_slice, new)) - 1
        place = torch.arange(self._num_entries_read(cache_slice), device=new.device)
        held = last - (last - place) % self.length
        held = torch.where(held < 0, 2**30, held)
        return torch.cat((held, new), 1) if is_long else held

    def append(self, cache_slice: CacheSlice, *new: Tensor) -> tuple[Tensor, Tensor]:
        """See `KVCache.append`. After more than `SPARE` new tokens, returns copies."""
        key, value = (part.to(self.tensors[0].dtype) for part in new)
        is_long = cache_slice.length > self.SPARE
        if not is_long:
            self._write_last_tokens(cache_slice, key, value)
        entries = slice(self._num_entries_read(cache_slice))
        keys, values = (kept[cache_slice.rows, :, entries] for kept in self.tensors)
        if is_long:
            keys, values = torch.cat((keys, key), 2), torch.cat((values, value), 2)
            self._write_last_tokens(cache_slice, key, value)
        return keys, values

    def _num_entries_read(self, cache_slice: CacheSlice) -> int:
        """Return how many entries of the buffer a pass reads, counted from the first entry."""
        if cache_slice.is_prefill and cache_slice.length > self.SPARE:
            return 0
        return min(cache_slice.end, self.length)

    def _write_last_tokens(self, cache_slice: CacheSlice, key: Tensor, value: Tensor) -> None:
        """Write the last `length` tokens of keys and values [B, K, T, H] to the buffer."""
        columns = cache_slice.columns(key.device)
        end = self._end_columns(cache_slice, columns)
        is_kept = (columns < end) & (columns >= end - self.length)
        places = torch.where(is_kept, columns % self.length, self.length)
        _write_columns(self.tensors, cache_slice, places, key, value)

    @staticmethod
    def _end_columns(cache_slice: CacheSlice, columns: Tensor) -> Tensor:
        """Return the column after the last new token of every row: int64 [1 or B, 1]."""
        length = cache_slice.length if cache_slice.new is None else cache_slice.new[:, None]
        return columns[:, :1] + length


class TokenHistory(State):
    """The token ids of all texts, int64 [slots, length + 1], for models that reread all of them.

    Padding after the end of a slot is written to the last column.
    """

    def __init__(self, slots: int, length: int, device: torch.device) -> None:
        super().__init__(torch.zeros(slots, length + 1, dtype=torch.int64, device=device))
        self.max_crop = self.length = length

    def append(self, cache_slice: CacheSlice, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append ids [B, T] to the slots.

        Returns the full sequences [B, S] and the column indices of the new ids [B, T].
        """
        columns = cache_slice.columns(ids.device).expand_as(ids).clamp(max=self.length)
        (texts,) = self.tensors
        texts[cache_slice.slots(len(ids), ids.device)[:, None], columns] = ids
        return texts[cache_slice.rows, : cache_slice.end], columns


class CrossAttentionCache:
    """The cross-attention cache of a layer: keys and values of encoder outputs, [slots, K, S, H].

    It is empty until the first encoder output is written.
    """

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def write(self, slots: Tensor, new: Sequence[Tensor], num_slots: int, capacity: int) -> None:
        """Write keys and values [n, K, S, H] to slots, int64 [n].

        The cache first grows to at least `capacity` positions per slot.
        """
        if not self.tensors:
            self.tensors = tuple(part.new_zeros(num_slots, *part.shape[1:]) for part in new)
        self.tensors = tuple(_pad_to_length(kept, capacity, dim=2) for kept in self.tensors)
        for kept, part in zip(self.tensors, new, strict=True):
            kept[slots, :, : part.shape[2]] = part

    def read(self, cache_slice: CacheSlice) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, K, S, H] of the slots of a pass."""
        keys, values = (kept[cache_slice.rows] for kept in self.tensors)
        return keys, values


class Cache:
    """The cache of a model: the number of tokens in each slot, and the states of all layers.

    Args:
        num_slots: the number of texts that the cache can hold at a time.
        slot_length: the maximum number of tokens per slot, prompt included.
        states: the state of the mixer of each layer.
        device: the device of `lengths`, int64 [slots].
        projections: for each layer with cross-attention, the function that maps an encoder's
            output to keys and values [n, K, S, H].
        feed_forward_states: the state of the feed-forward network of each layer; None for a
            network that has no state.
    """

    def __init__(
        self,
        num_slots: int,
        slot_length: int,
        states: Sequence[State],
        *,
        device: torch.device,
        projections: Sequence[KeyValueProjection] = (),
        feed_forward_states: Sequence[State | None] = (),
    ) -> None:
        self.num_slots, self.slot_length = num_slots, slot_length
        kept = [state for state in feed_forward_states if state is not None]
        self.states, self.projections = [*states, *kept], projections
        self.feed_forward_states = feed_forward_states
        self.cross_caches = [CrossAttentionCache() for _ in projections]
        self.source_mask: Tensor | None = None  # bool [slots, S]
        self.lengths = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._max_lengths = torch.zeros_like(self.lengths)  # the maximum length of each text
        self._prefill_lengths = torch.zeros_like(self.lengths)  # see `CacheSlice.prefill_lengths`

    @property
    def max_crop(self) -> int:
        """The maximum number of tokens that `crop` can remove; speculative decoding needs some."""
        return min(state.max_crop for state in self.states)

    def start_pass(
        self, batch: int, length: int, slots: Tensor | None, lengths: Tensor | None
    ) -> CacheSlice:
        """Start a pass of `batch` rows of `length` positions and return its `CacheSlice`.

        `slots` and `lengths` are those of `Transformer.read`. The pass ends with `advance`.

        Raises:
            SpecError: if a slot would hold more than `slot_length` tokens.
        """
        rows = slice(batch) if slots is None else slots
        start = self.lengths[rows].clone()
        prefill_lengths = self._prefill_lengths[rows]
        if torch.compiler.is_compiling() or not start.all():  # some texts begin
            new = torch.full_like(start, length) if lengths is None else lengths
            prefill_lengths = self._prefill_lengths[rows] = torch.where(
                start == 0, new, prefill_lengths
            )
        if torch.compiler.is_compiling():  # shapes that do not depend on what the slots hold
            return CacheSlice(rows, start, length, lengths, self.slot_length, prefill_lengths)
        if slots is not None:
            numbers = slots.tolist()
            if numbers == list(range(numbers[0], numbers[0] + batch)):  # neighbours
                rows = slice(numbers[0], numbers[0] + batch)
        first, last = (int(bound) for bound in start.aminmax())
        needed = last + length if lengths is None else int((start + lengths).max())
        if needed > self.slot_length:
            raise SpecError(
                f"a slot of this cache would hold {needed} tokens, but slot_length is "
                f"{self.slot_length}: make longer slots, or free the slot."
            )
        end = min(last + length, self.slot_length)
        return CacheSlice(
            rows, first if first == last else start, length, lengths, end, prefill_lengths
        )

    def advance(self, cache_slice: CacheSlice) -> None:
        """Add the new tokens to `lengths`, after all layers have read and written the cache."""
        new = cache_slice.new
        self.lengths[cache_slice.rows] += cache_slice.length if new is None else new
        self._max_lengths.clamp_(min=self.lengths)

    def free(self, slot: int) -> None:
        """Make a slot empty."""
        self.lengths[slot] = self._max_lengths[slot] = 0
        if self.source_mask is not None:
            self.source_mask[slot] = False
        for state in self.states:
            state.free(slot)

    def crop(self, slots: Tensor, lengths: Tensor) -> None:
        """Shorten slots, int64 [n], to their first `lengths` tokens, int64 [n].

        Raises:
            SpecError: if a slot has fewer tokens than its new length, or if a new length is more
                than `max_crop` tokens below the maximum length that its text has had.
        """
        if bool((lengths > self.lengths[slots]).any()):
            raise SpecError(
                f"slots {slots.tolist()} hold {self.lengths[slots].tolist()} tokens: they cannot "
                f"be cropped to {lengths.tolist()}."
            )
        if (most := int((self._max_lengths[slots] - lengths).max())) > self.max_crop:
            raise SpecError(
                f"this cache cannot be rolled back by {most} tokens, at most by {self.max_crop}: "
                "leave speculative decoding out."
            )
        self.lengths[slots] = lengths

    def copy(self, source: Tensor, target: Tensor, *, copy_cross_cache: bool = True) -> None:
        """Copy the texts and states of some slots to others; the slots may overlap.

        Args:
            source: int64 [n], the slots to copy from.
            target: int64 [n], the slots to copy to.
            copy_cross_cache: whether the cross-attention cache is copied too. It need not be if
                both slots have the same encoder output, like the beams of one prompt.
        """
        length = int(self.lengths[source].max()) if len(source) else 0
        for state in self.states:
            state.copy(source, target, length)
        if copy_cross_cache and self.source_mask is not None:
            self.source_mask[target] = self.source_mask[source]
            for tensor in (each for state in self.cross_caches for each in state.tensors):
                tensor[target] = tensor[source]
        self.lengths[target] = self.lengths[source]
        self._max_lengths[target] = self._max_lengths[source]
        self._prefill_lengths[target] = self._prefill_lengths[source]

    def set_encoder_output(
        self, slots: Tensor, hidden: Tensor, attention_mask: Tensor | None = None
    ) -> None:
        """Compute and cache the keys and values of an encoder's output for cross-attention.

        All slots have the same number of positions. The first source sets this number, a longer
        source raises it to a power of two, and it never shrinks. Every position takes 2 * K * H
        numbers per layer: 8 slots of T5-base with 512 positions take 300 MB in float32.

        Args:
            slots: int64 [n], the slots that will decode from this output.
            hidden: [n, S, D], the output of `Transformer.encode`.
            attention_mask: [n, S], nonzero for source tokens, 0 for padding; None: no padding.
        """
        length = hidden.shape[1]
        mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        if attention_mask is not None:
            mask = attention_mask.bool()
        if self.source_mask is None:
            self.source_mask = mask.new_zeros(self.num_slots, length)
        capacity = self.source_mask.shape[1]
        if length > capacity:  # powers of two: few shapes for a compiled decode step
            capacity = max(64, 1 << (length - 1).bit_length())
        self.source_mask = _pad_to_length(self.source_mask, capacity, dim=1)
        self.source_mask[slots] = F.pad(mask, (0, capacity - length))
        for state, project in zip(self.cross_caches, self.projections, strict=True):
            state.write(slots, project(hidden), self.num_slots, capacity)


def build_token_cache(slots: int, slot_length: int, device: torch.device) -> Cache:
    """Return a cache that holds only the token ids of each slot."""
    return Cache(slots, slot_length, [TokenHistory(slots, slot_length, device)], device=device)


def append_tokens(
    cache: Cache, ids: Tensor, slots: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Append ids [B, T] to the slots of a `build_token_cache`.

    Returns the full sequences [B, S] and the column indices of the new ids [B, T].
    """
    cache_slice = cache.start_pass(len(ids), ids.shape[1], slots, lengths)
    (tokens,) = cache.states
    assert isinstance(tokens, TokenHistory)
    cache.advance(cache_slice)
    return tokens.append(cache_slice, ids)


def make_state_template(weight: Tensor) -> Tensor:
    """Return an empty tensor with the dtype and device of states for a model with this weight.

    On a CPU, states are at least float32, since attention to bfloat16 keys is six times slower
    there.
    """
    dtype = weight.dtype
    if weight.device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)
    return torch.empty(0, dtype=dtype, device=weight.device)


def _write_columns(
    tensors: Sequence[Tensor], cache_slice: CacheSlice, columns: Tensor, key: Tensor, value: Tensor
) -> None:
    """Write keys and values [B, K, T, H] to the given columns, int64 [1 or B, T], of the slots."""
    slots = cache_slice.slots(len(key), key.device)[:, None]
    for kept, part in zip(tensors, (key, value), strict=True):
        kept[slots, :, columns] = part.transpose(1, 2)


def _pad_to_length(x: Tensor, length: int, *, dim: int) -> Tensor:
    """Pad `x` with zeros to at least `length` positions in axis `dim`."""
    missing = length - x.shape[dim]
    return F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing)) if missing > 0 else x
