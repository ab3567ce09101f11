"""The cache of a model for decoding: the states of its layers, in one slot per sequence.

A sequence occupies one slot from its first token to its last. A slot is filled from the left and
never moves. Positions after the length of a slot are never read.

Shape letters: B rows of a forward pass, T new positions, S cached positions, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
        rows: the indices of the slots, int64 [B]. If the slots are adjacent, a slice, so that they
            can be read without a copy.
        start: the number of tokens in each slot before the pass: an int if it is equal for all
            slots, otherwise int64 [B].
        length: T, the number of new positions per row, padding included.
        new: int64 [B], the number of new tokens per row, without padding; None: no padding.
        end: S, the number of positions to read from each slot, new positions included.
        prefill_lengths: int64 [B], the number of tokens that the first forward pass (the prefill)
            wrote to each slot.
    """

    rows: slice | Tensor
    start: int | Tensor
    length: int
    new: Tensor | None
    end: int
    prefill_lengths: Tensor | None = None

    @property
    def is_prefill(self) -> bool:
        """Whether all slots were empty before the forward pass."""
        return isinstance(self.start, int) and self.start == 0

    def columns(self, device: torch.device) -> Tensor:
        """Return the indices of the new tokens within their slots: int64 [1 or B, T]."""
        start = self.start if isinstance(self.start, int) else self.start[:, None]
        return start + torch.arange(self.length, device=device)[None]

    def is_token(self, device: torch.device) -> Tensor | None:
        """Return the padding mask of the new positions: bool [B, T], False for padding.

        None if there is no padding.
        """
        if self.new is None:
            return None
        return torch.arange(self.length, device=device) < self.new[:, None]

    def last(self, x: Tensor, count: int) -> Tensor:
        """Return the vectors of the last `count` tokens of each row; padding does not count.

        Args:
            x: [B, count + T, D], the vectors of `count` earlier tokens, followed by the vectors of
                the T new positions with padding on the right.
            count: the number of tokens to return.

        Returns:
            [B, count, D].
        """
        if self.new is None:
            return x[:, x.shape[1] - count :]
        at = self.new[:, None] + torch.arange(count, device=x.device)
        return x.take_along_dim(at[..., None], 1)

    def slots(self, batch: int, device: torch.device) -> Tensor:
        """Return the indices of the B = `batch` slots as a tensor, int64 [B]."""
        if isinstance(self.rows, Tensor):
            return self.rows
        first = self.rows.start or 0
        return torch.arange(first, first + batch, device=device)


class State:
    """The cached state of one layer: `tensors`, each [slots, ...].

    This base class is for states of fixed size, such as those of recurrent layers. They are zero
    for an empty slot. Subclasses such as `KVCache` store data for every token.
    """

    max_crop = 0
    """The maximum number of tokens that `Cache.crop` can remove from the end of a slot."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def read(self, cache_slice: CacheSlice) -> tuple[Tensor, ...]:
        """Return copies of the state tensors for the slots of a forward pass, each [B, ...]."""
        return tuple(kept[cache_slice.rows].clone() for kept in self.tensors)

    def write(self, cache_slice: CacheSlice, *new: Tensor) -> None:
        """Replace the state in the slots of a forward pass with the tensors `new`, each [B, ...].

        The tensors are cast to the dtype of the state. They are detached, as in truncated
        backpropagation through time.
        """
        for kept, part in zip(self.tensors, new, strict=True):
            kept[cache_slice.rows] = part.detach().to(kept.dtype)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the state of the slots `source` to the slots `target`.

        `length` is the number of tokens in the longest source slot.
        """
        for tensor in self.tensors:
            tensor[target] = tensor[source]

    def free(self, slot: int) -> None:
        """Reset the state of a slot to zeros."""
        for tensor in self.tensors:
            tensor[slot] = 0


class KVCache(State):
    """A KV cache: the keys and the values of all tokens, each [slots, K, length + 1, H].

    The extra position at the end receives padding that would be written after the end of a slot.
    """

    def __init__(self, slots: int, length: int, heads: int, width: int, like: Tensor) -> None:
        super().__init__(*(like.new_zeros(slots, heads, length + 1, width) for _ in range(2)))
        self.max_crop = length

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """Return the position in the sequence of each key that `append` returns.

        Args:
            cache_slice: the slots and positions of the forward pass.
            new: int64 [1 or B, T], the positions of the new tokens.

        Returns:
            int64 [1 or B, S].
        """
        if cache_slice.is_prefill:
            return new
        return torch.arange(cache_slice.end, device=new.device)[None]

    def append(self, cache_slice: CacheSlice, *new: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, K, T, H] to the slots.

        Returns:
            The keys and values [B, K, S, H] that the new tokens can attend to. If the slots were
            empty, they are the new keys and values, cast to the dtype of the cache. Otherwise they
            are all keys and values in the slots, as views of the cache if the slots are adjacent.
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
        """Copy the first `length` keys and values of the slots `source` to the slots `target`.

        See `State.copy`.
        """
        for tensor in self.tensors:
            tensor[target, :, :length] = tensor[source, :, :length]

    def free(self, slot: int) -> None:
        """Do nothing: the old keys and values need no reset, since they are never read again."""


class RollingKVCache(State):
    """A rolling KV cache (ring buffer) for sliding-window attention.

    The keys and the values are stored in two tensors [slots, K, length + 1, H]. The token at
    position p of a sequence is stored at index p mod `length`. The buffer holds the last `window`
    tokens and `SPARE` more, so that `Cache.crop` can remove up to `SPARE` tokens.

    A forward pass of at most `SPARE` tokens first writes its keys and values and then reads the
    buffer. A longer pass would overwrite keys that its first tokens attend to. Therefore it first
    reads the buffer (unless the buffer is empty), appends its own keys and values to the result,
    and writes to the buffer afterwards. The extra position at the end receives keys and values that
    need not be stored, such as padding.

    Source: Jiang et al. 2023, section 2, the rolling buffer cache.
    """

    SPARE = 64
    """The maximum number of tokens that `Cache.crop` can remove from the end of a slot."""

    def __init__(self, slots: int, window: int, heads: int, width: int, like: Tensor) -> None:
        self.length = window + self.SPARE
        super().__init__(*(like.new_zeros(slots, heads, self.length + 1, width) for _ in range(2)))
        self.max_crop = self.SPARE

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """Return the position in the sequence of each key that `append` returns.

        Unused entries of the buffer get the position 2^30, after all tokens, so that no token
        attends to them. See `KVCache.columns`.
        """
        is_long = cache_slice.length > self.SPARE
        last = (new[:, :1] if is_long else self._end_positions(cache_slice, new)) - 1
        place = torch.arange(self._num_entries_read(cache_slice), device=new.device)
        held = last - (last - place) % self.length
        held = torch.where(held < 0, 2**30, held)
        return torch.cat((held, new), 1) if is_long else held

    def append(self, cache_slice: CacheSlice, *new: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, K, T, H] to the buffer, over the oldest ones.

        Returns:
            The keys and values [B, K, S, H] that the new tokens can attend to, in the order of the
            buffer. They are views of the buffer if the slots are adjacent and T <= `SPARE`.
            Otherwise they are copies, because for T > `SPARE` the old and the new keys and values
            are concatenated. See `KVCache.append`.
        """
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
        """Return the number of entries that a forward pass reads from the start of the buffer."""
        if cache_slice.is_prefill and cache_slice.length > self.SPARE:
            return 0
        return min(cache_slice.end, self.length)

    def _write_last_tokens(self, cache_slice: CacheSlice, key: Tensor, value: Tensor) -> None:
        """Write keys and values [B, K, T, H] of the last `length` tokens of each row to the buffer.

        Padding and earlier tokens are not stored.
        """
        columns = cache_slice.columns(key.device)
        end = self._end_positions(cache_slice, columns)
        is_kept = (columns < end) & (columns >= end - self.length)
        places = torch.where(is_kept, columns % self.length, self.length)
        _write_columns(self.tensors, cache_slice, places, key, value)

    @staticmethod
    def _end_positions(cache_slice: CacheSlice, columns: Tensor) -> Tensor:
        """Return the position after the last new token of every row: int64 [1 or B, 1].

        Padding does not count. `columns` contains the positions of the new tokens, [1 or B, T].
        """
        length = cache_slice.length if cache_slice.new is None else cache_slice.new[:, None]
        return columns[:, :1] + length


class TokenHistory(State):
    """The token ids of all sequences, for models that read whole sequences at every step.

    `tensors` contains one tensor, int64 [slots, length + 1]. The extra position at the end receives
    padding that would be written after the end of a slot.
    """

    def __init__(self, slots: int, length: int, device: torch.device) -> None:
        super().__init__(torch.zeros(slots, length + 1, dtype=torch.int64, device=device))
        self.max_crop = self.length = length

    def append(self, cache_slice: CacheSlice, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append token ids [B, T] to the slots of a forward pass.

        Returns the full sequences, old and new ids, [B, S], and the indices of the new ids in these
        sequences, [B, T].
        """
        columns = cache_slice.columns(ids.device).expand_as(ids).clamp(max=self.length)
        (texts,) = self.tensors
        texts[cache_slice.slots(len(ids), ids.device)[:, None], columns] = ids
        return texts[cache_slice.rows, : cache_slice.end], columns


class CrossAttentionCache:
    """The cross-attention cache of a layer: keys and values of the encoder's output.

    `tensors` is empty until the first keys and values are written. Then it contains the keys and
    the values, [slots, K, S, H] each.
    """

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def write(self, slots: Tensor, new: Sequence[Tensor], num_slots: int, capacity: int) -> None:
        """Write the keys and values of an encoder's output to the cache.

        Args:
            slots: int64 [n], the slots to write to.
            new: the keys and the values, [n, K, S, H] each.
            num_slots: the number of slots of the whole cache.
            capacity: the minimum number of positions per slot, to which the cache grows if needed.
        """
        if not self.tensors:
            self.tensors = tuple(part.new_zeros(num_slots, *part.shape[1:]) for part in new)
        self.tensors = tuple(_pad_to_length(kept, capacity, dim=2) for kept in self.tensors)
        for kept, part in zip(self.tensors, new, strict=True):
            kept[slots, :, : part.shape[2]] = part

    def read(self, cache_slice: CacheSlice) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, K, S, H] in the slots of a forward pass."""
        keys, values = (kept[cache_slice.rows] for kept in self.tensors)
        return keys, values


class Cache:
    """The cache of a model: the number of tokens in each slot, and the states of all layers.

    Args:
        num_slots: the number of sequences that the cache can hold at a time.
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
        self._fixed_end: int | None = None  # see `fixed_shapes`

    @property
    def max_crop(self) -> int:
        """The maximum number of tokens that `crop` can remove from the end of a slot.

        Speculative decoding requires at least the number of draft tokens per step.
        """
        return min(state.max_crop for state in self.states)

    @property
    def source_length(self) -> int:
        """The number of positions per slot of the cross-attention cache, 0 if it is empty."""
        return 0 if self.source_mask is None else self.source_mask.shape[1]

    @contextmanager
    def fixed_shapes(self, end: int | None) -> Iterator[None]:
        """Let forward passes read the first `end` positions of the first slots.

        Shapes then do not depend on the lengths of the texts, and nothing is read back from the
        device. The caller ensures that no slot holds more than `end` tokens after the pass. None:
        no fixed shapes.
        """
        self._fixed_end = end
        try:
            yield
        finally:
            self._fixed_end = None

    def start_pass(
        self, batch: int, length: int, slots: Tensor | None, lengths: Tensor | None
    ) -> CacheSlice:
        """Start a forward pass, and return the slots and positions that it writes to.

        The forward pass ends with a call of `end_pass`.

        Args:
            batch: the number of rows.
            length: the number of new positions per row, padding included.
            slots: int64 [batch], the slot of each row; None: the first `batch` slots.
            lengths: int64 [batch], the number of new tokens per row; the other positions are
                padding on the right. None: no padding.

        Raises:
            SpecError: if a slot would hold more than `slot_length` tokens.
        """
        rows = slice(batch) if slots is None else slots
        start = self.lengths[rows].clone()
        prefill_lengths = self._prefill_lengths[rows]
        fixed_end = self._fixed_end
        if fixed_end is not None or not start.all():  # some slots are empty
            new = torch.full_like(start, length) if lengths is None else lengths
            prefill_lengths = self._prefill_lengths[rows] = torch.where(
                start == 0, new, prefill_lengths
            )
        if fixed_end is not None:
            return CacheSlice(rows, start, length, lengths, fixed_end, prefill_lengths)
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

    def end_pass(self, cache_slice: CacheSlice) -> None:
        """End a forward pass: add its new tokens to `lengths`.

        Call `end_pass` after all layers have read and written the cache.
        """
        new = cache_slice.new
        self.lengths[cache_slice.rows] += cache_slice.length if new is None else new
        self._max_lengths.clamp_(min=self.lengths)

    def free(self, slot: int) -> None:
        """Empty a slot, so that another sequence can use it."""
        self.restart(slot)
        if self.source_mask is not None:
            self.source_mask[slot] = False

    def restart(self, slot: int) -> None:
        """Remove all tokens of a slot, which keeps its encoder output, to read them again."""
        self.lengths[slot] = self._max_lengths[slot] = 0
        for state in self.states:
            state.free(slot)

    def crop(self, slots: Tensor, lengths: Tensor) -> None:
        """Remove tokens from the end of some slots.

        Args:
            slots: int64 [n], the slots to shorten.
            lengths: int64 [n], the number of tokens to keep in each of these slots.

        Raises:
            SpecError: if a slot has fewer tokens than its new length, or if the new length is more
                than `max_crop` tokens below the maximum length that the sequence has had.
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
        """Copy some slots, with the states of all layers, to other slots.

        A slot may be in both `source` and `target`.

        Args:
            source: int64 [n], the slots to copy from.
            target: int64 [n], the slots to copy to.
            copy_cross_cache: whether the cross-attention cache is copied, too. This is not needed
                if both slots have the same encoder output, like the beams of one prompt.
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

        All slots of the cross-attention cache have the same number of positions. The first encoder
        output sets this number. A longer output increases it to the next power of two; the number
        never shrinks. Every position takes 2 * K * H numbers per layer: 8 slots of T5-base with 512
        positions take 300 MB in float32.

        Args:
            slots: int64 [n], the slots that will decode from this output.
            hidden: [n, S, D], the output of `Transformer.encode`.
            attention_mask: [n, S], nonzero for tokens of the encoder, 0 for padding; None: no
                padding.
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
    """Return an empty cache that stores only the token ids of each sequence.

    It is for models that read whole sequences at every step, instead of keeping a state.
    """
    return Cache(slots, slot_length, [TokenHistory(slots, slot_length, device)], device=device)


def append_tokens(
    cache: Cache, ids: Tensor, slots: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Append token ids to a cache made by `build_token_cache`.

    Args:
        cache: the cache.
        ids: [B, T], the new token ids, with padding on the right.
        slots: int64 [B], the slot of each row; None: the first B slots.
        lengths: int64 [B], the number of new tokens per row; None: no padding.

    Returns:
        The full sequences, old and new ids, [B, S], and the indices of the new ids in these
        sequences, [B, T].
    """
    cache_slice = cache.start_pass(len(ids), ids.shape[1], slots, lengths)
    (tokens,) = cache.states
    assert isinstance(tokens, TokenHistory)
    cache.end_pass(cache_slice)
    return tokens.append(cache_slice, ids)


def make_state_template(weight: Tensor) -> Tensor:
    """Return an empty tensor with the dtype and device that cached states should have.

    They are the dtype and device of `weight`, a weight of the model. On a CPU, however, the dtype
    is at least float32, because attention to bfloat16 keys is six times slower there. The tensor is
    passed to `MixerModule.new_state` as `like`.
    """
    dtype = weight.dtype
    if weight.device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)
    return torch.empty(0, dtype=dtype, device=weight.device)


def _write_columns(
    tensors: Sequence[Tensor], cache_slice: CacheSlice, columns: Tensor, key: Tensor, value: Tensor
) -> None:
    """Write keys and values to given positions of the slots of a forward pass.

    Args:
        tensors: the cached keys and the cached values, [slots, K, positions, H] each.
        cache_slice: the slots of the forward pass.
        columns: int64 [1 or B, T], the positions within the slots to write to.
        key: the new keys [B, K, T, H].
        value: the new values [B, K, T, H].
    """
    slots = cache_slice.slots(len(key), key.device)[:, None]
    for kept, part in zip(tensors, (key, value), strict=True):
        kept[slots, :, columns] = part.transpose(1, 2)


def _pad_to_length(x: Tensor, length: int, *, dim: int) -> Tensor:
    """Pad `x` with zeros at the end of axis `dim` to at least `length` entries in this axis."""
    missing = length - x.shape[dim]
    return F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing)) if missing > 0 else x
