"""What a model remembers of texts between steps: states of mixers in the slots of a cache.

A text holds one slot from its first token to its last. A slot is filled from the left and never
moves; what is after its length is never read.

Shape letters: B rows of a call, T new positions, S kept positions, K key-value heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.errors import SpecError

Projection = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class CacheSlice:
    """Where one forward pass writes: which slots, and from which position on.

    Args:
        rows: the slots, int64 [B]; a slice where they are neighbours, which is read without a copy.
        start: tokens that the slots hold: one number where it is the same for all, else int64 [B].
        length: T, new positions of every row.
        new: int64 [B], how many of them are real; None: all.
        end: S, positions that the longest row needs.
        prefill: int64 [B], new tokens of the pass that began the text of each slot.
    """

    rows: slice | Tensor
    start: int | Tensor
    length: int
    new: Tensor | None
    end: int
    prefill: Tensor | None = None

    @property
    def is_prefill(self) -> bool:
        """Whether the slots were empty."""
        return isinstance(self.start, int) and self.start == 0

    def columns(self, device: torch.device) -> Tensor:
        """Where the new positions are in their slots: int64 [1 or B, T]."""
        start = self.start if isinstance(self.start, int) else self.start[:, None]
        return start + torch.arange(self.length, device=device)[None]

    def is_token(self, device: torch.device) -> Tensor | None:
        """Which of the new positions are no padding: bool [B, T]; None: all."""
        if self.new is None:
            return None
        return torch.arange(self.length, device=device) < self.new[:, None]

    def last(self, x: Tensor, count: int) -> Tensor:
        """Return the last `count` real ones of earlier and new vectors.

        Shape: [B, count + T, ...], the new ones last -> [B, count, ...].
        """
        if self.new is None:
            return x[:, x.shape[1] - count :]
        at = self.new[:, None] + torch.arange(count, device=x.device)
        return x.take_along_dim(at[..., None], 1)

    def slots(self, batch: int, device: torch.device) -> Tensor:
        """The slots as int64 [B]."""
        if isinstance(self.rows, Tensor):
            return self.rows
        first = self.rows.start or 0
        return torch.arange(first, first + batch, device=device)


class State:
    """What a mixer keeps of earlier tokens: tensors [slots, ...], zeros at first."""

    max_crop = 0
    """So many last tokens of a slot can be taken back (`Cache.crop`)."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def read(self, cache_slice: CacheSlice) -> tuple[Tensor, ...]:
        """Copies of what the slots of a pass hold, [B, ...]."""
        return tuple(kept[cache_slice.rows].clone() for kept in self.tensors)

    def write(self, cache_slice: CacheSlice, *new: Tensor) -> None:
        """Keep these, [B, ...], in the slots of a pass, in the precision of the state.

        Gradients end here: truncated backpropagation through time.
        """
        for kept, part in zip(self.tensors, new, strict=True):
            kept[cache_slice.rows] = part.detach().to(kept.dtype)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy slots of at most `length` tokens into others."""
        for tensor in self.tensors:
            tensor[target] = tensor[source]

    def free(self, slot: int) -> None:
        """Forget the text of a slot."""
        for tensor in self.tensors:
            tensor[slot] = 0


class KeysValues(State):
    """A KV cache: keys and values of whole texts, [slots, K, length + 1, H].

    The last position takes what padding would write after the end of a slot.
    """

    def __init__(self, slots: int, length: int, heads: int, width: int, like: Tensor) -> None:
        super().__init__(*(like.new_zeros(slots, heads, length + 1, width) for _ in range(2)))
        self.max_crop = length

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """The columns of what `append` returns, of the new ones [1 or B, T]: int64 [1 or B, S]."""
        return (
            new
            if cache_slice.is_prefill
            else torch.arange(cache_slice.end, device=new.device)[None]
        )

    def append(self, cache_slice: CacheSlice, *new: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, K, T, H] after what the slots hold: all that may be seen.

        Returns:
            Keys and values [B, K, S, H]: the arguments themselves where the slots were empty, else
            those of the slots, as views where the slots are neighbours.
        """
        rows, start = cache_slice.rows, cache_slice.start
        last = self.tensors[0].shape[2] - 1
        key, value = (part.to(self.tensors[0].dtype) for part in new)
        if (
            isinstance(start, int)
            and isinstance(rows, slice)
            and start + cache_slice.length <= last
        ):
            for kept, part in zip(self.tensors, (key, value), strict=True):
                kept[rows, :, start : start + cache_slice.length] = part
        else:
            _write_at(
                self.tensors,
                cache_slice,
                cache_slice.columns(key.device).clamp(max=last),
                key,
                value,
            )
        if cache_slice.is_prefill:
            return key, value
        keys, values = (kept[rows, :, : cache_slice.end] for kept in self.tensors)
        return keys, values

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """See `State.copy`."""
        for tensor in self.tensors:
            tensor[target, :, :length] = tensor[source, :, :length]

    def free(self, slot: int) -> None:
        """Nothing: what is after the length of a slot is never read."""


class Ring(State):
    """A ring buffer of keys and values, [slots, K, length + 1, H]: column c is at c mod `length`.

    It keeps the `window` tokens that are seen and `SPARE` more, which can be taken back. A pass of
    at most `SPARE` tokens writes them and reads the ring. A longer one would write over what its
    first tokens see: it reads the ring as it was, unless that is empty, and then its own tokens.
    The last position takes what is not kept.

    Source: Jiang et al. 2023, section 2, the rolling buffer cache.
    """

    SPARE = 64
    """Tokens that can be taken back."""

    def __init__(self, slots: int, window: int, heads: int, width: int, like: Tensor) -> None:
        self.length = window + self.SPARE
        super().__init__(*(like.new_zeros(slots, heads, self.length + 1, width) for _ in range(2)))
        self.max_crop = self.SPARE

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """As `KeysValues.columns`; of what is not there one that is later than all."""
        is_long = cache_slice.length > self.SPARE
        last = (new[:, :1] if is_long else self._end(cache_slice, new)) - 1
        place = torch.arange(self._places(cache_slice), device=new.device)
        held = last - (last - place) % self.length
        held = torch.where(held < 0, 2**30, held)
        return torch.cat((held, new), 1) if is_long else held

    def append(self, cache_slice: CacheSlice, *new: Tensor) -> tuple[Tensor, Tensor]:
        """As `KeysValues.append`; of more than `SPARE` tokens what is returned is a copy."""
        key, value = (part.to(self.tensors[0].dtype) for part in new)
        is_long = cache_slice.length > self.SPARE
        if not is_long:
            self._write(cache_slice, key, value)
        keys, values = (
            kept[cache_slice.rows, :, : self._places(cache_slice)] for kept in self.tensors
        )
        if is_long:
            keys, values = torch.cat((keys, key), 2), torch.cat((values, value), 2)
            self._write(cache_slice, key, value)
        return keys, values

    def _places(self, cache_slice: CacheSlice) -> int:
        """So many first places of the ring are read."""
        if cache_slice.is_prefill and cache_slice.length > self.SPARE:
            return 0
        return min(cache_slice.end, self.length)

    def _write(self, cache_slice: CacheSlice, key: Tensor, value: Tensor) -> None:
        """Keep the last tokens of keys and values [B, K, T, H]."""
        columns = cache_slice.columns(key.device)
        end = self._end(cache_slice, columns)
        is_kept = (columns < end) & (columns >= end - self.length)
        places = torch.where(is_kept, columns % self.length, self.length)
        _write_at(self.tensors, cache_slice, places, key, value)

    @staticmethod
    def _end(cache_slice: CacheSlice, columns: Tensor) -> Tensor:
        """The column after the last real token of every row: int64 [1 or B, 1]."""
        length = cache_slice.length if cache_slice.new is None else cache_slice.new[:, None]
        return columns[:, :1] + length


class TokenHistory(State):
    """The tokens themselves, int64 [slots, length + 1], for models that read them again.

    The last column takes padding.
    """

    def __init__(self, slots: int, length: int, device: torch.device) -> None:
        super().__init__(torch.zeros(slots, length + 1, dtype=torch.int64, device=device))
        self.max_crop = self.length = length

    def append(self, cache_slice: CacheSlice, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Write ids [B, T] after what the slots hold: the texts [B, S], columns of ids [B, T]."""
        columns = cache_slice.columns(ids.device).expand_as(ids).clamp(max=self.length)
        (texts,) = self.tensors
        texts[cache_slice.slots(len(ids), ids.device)[:, None], columns] = ids
        return texts[cache_slice.rows, : cache_slice.end], columns


class CrossAttentionCache:
    """Keys and values of encoders' outputs, [slots, K, S, H], for a layer's cross-attention."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def write(self, slots: Tensor, new: Sequence[Tensor], num_slots: int, capacity: int) -> None:
        """Keep keys and values [n, K, S, H] of slots, int64 [n], in so many positions."""
        if not self.tensors:
            self.tensors = tuple(part.new_zeros(num_slots, *part.shape[1:]) for part in new)
        self.tensors = tuple(_with_columns(kept, capacity, dim=2) for kept in self.tensors)
        for kept, part in zip(self.tensors, new, strict=True):
            kept[slots, :, : part.shape[2]] = part

    def read(self, cache_slice: CacheSlice) -> tuple[Tensor, Tensor]:
        """Keys and values [B, K, S, H] of the slots of a pass."""
        keys, values = (kept[cache_slice.rows] for kept in self.tensors)
        return keys, values


class Cache:
    """The slots of a model: how many tokens each holds, and what its layers keep of them.

    Args:
        num_slots: texts that it holds at a time.
        slot_length: tokens of each, prompt included, at most.
        states: of every layer, what its mixer keeps.
        device: where `lengths`, int64 [slots], is kept.
        projections: of every layer that attends to an encoder's output, what makes keys and values
            [n, K, S, H] of it.
        feed_forward_states: of every layer, what its feed-forward network keeps, where it does.
    """

    def __init__(
        self,
        num_slots: int,
        slot_length: int,
        states: Sequence[State],
        *,
        device: torch.device,
        projections: Sequence[Projection] = (),
        feed_forward_states: Sequence[State | None] = (),
    ) -> None:
        self.num_slots, self.slot_length = num_slots, slot_length
        kept = [state for state in feed_forward_states if state is not None]
        self.states, self.projections = [*states, *kept], projections
        self.feed_forward_states = feed_forward_states
        self.sources = [CrossAttentionCache() for _ in projections]
        self.source_mask: Tensor | None = None  # bool [slots, S]
        self.lengths = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._high_water = torch.zeros_like(self.lengths)  # that the text of a slot has been
        self._prefills = torch.zeros_like(self.lengths)  # see `CacheSlice.prefill`

    @property
    def max_crop(self) -> int:
        """So many last tokens of a slot can be taken back; speculative decoding needs some."""
        return min(state.max_crop for state in self.states)

    def begin(
        self, batch: int, length: int, slots: Tensor | None, lengths: Tensor | None
    ) -> CacheSlice:
        """The span of `batch` rows of `length` positions; see `Transformer.read`.

        Raises:
            SpecError: more tokens than `slot_length`.
        """
        rows = slice(batch) if slots is None else slots
        start = self.lengths[rows].clone()
        prefill = self._prefills[rows]
        if torch.compiler.is_compiling() or not start.all():  # some texts begin
            new = torch.full_like(start, length) if lengths is None else lengths
            prefill = self._prefills[rows] = torch.where(start == 0, new, prefill)
        if torch.compiler.is_compiling():  # shapes that do not depend on what the slots hold
            return CacheSlice(rows, start, length, lengths, self.slot_length, prefill)
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
        return CacheSlice(rows, first if first == last else start, length, lengths, end, prefill)

    def advance(self, cache_slice: CacheSlice) -> None:
        """Count the new tokens, after all layers have read and written."""
        self.lengths[cache_slice.rows] += (
            cache_slice.length if cache_slice.new is None else cache_slice.new
        )
        self._high_water.clamp_(min=self.lengths)

    def free(self, slot: int) -> None:
        """Make a slot empty."""
        self.lengths[slot] = self._high_water[slot] = 0
        if self.source_mask is not None:
            self.source_mask[slot] = False
        for state in self.states:
            state.free(slot)

    def crop(self, slots: Tensor, lengths: Tensor) -> None:
        """Take back the last tokens of slots, int64 [n], down to so many, int64 [n].

        Raises:
            SpecError: more than a slot holds; back by more tokens than `max_crop`, counted from
                the longest that the text was.
        """
        if bool((lengths > self.lengths[slots]).any()):
            raise SpecError(
                f"slots {slots.tolist()} hold {self.lengths[slots].tolist()} tokens: they cannot "
                f"be taken back to {lengths.tolist()}."
            )
        if (most := int((self._high_water[slots] - lengths).max())) > self.max_crop:
            raise SpecError(
                f"what this model keeps of a text cannot go back by {most} tokens, at most by "
                f"{self.max_crop}: use no speculative decoding with it."
            )
        self.lengths[slots] = lengths

    def copy(self, source: Tensor, target: Tensor, *, copy_source: bool = True) -> None:
        """Copy the texts of slots, int64 [n], into others; both may name the same slots.

        Args:
            source: slots to copy from.
            target: slots to copy into.
            copy_source: whether keys and values of the encoder's output are copied too; not
                needed where both slots have the same source, as beams of one prompt do.
        """
        length = int(self.lengths[source].max()) if len(source) else 0
        for state in self.states:
            state.copy(source, target, length)
        if copy_source and self.source_mask is not None:
            self.source_mask[target] = self.source_mask[source]
            for tensor in (each for state in self.sources for each in state.tensors):
                tensor[target] = tensor[source]
        self.lengths[target] = self.lengths[source]
        self._high_water[target] = self._high_water[source]
        self._prefills[target] = self._prefills[source]

    def set_encoder_output(
        self, slots: Tensor, hidden: Tensor, attention_mask: Tensor | None = None
    ) -> None:
        """Project an encoder's output [n, S, D] once, for all tokens that slots [n] will decode.

        All slots take as many positions as the longest source so far: the first source sets the
        number, a longer one raises it to a power of two, and it never shrinks. Every position
        takes 2 * K * H numbers per layer: 8 slots of T5-base at 512 tokens take 300 MB in float32.

        Args:
            slots: int64 [n].
            hidden: what `Transformer.encode` gives.
            attention_mask: [n, S], nonzero where a source token is real.
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
        self.source_mask = _with_columns(self.source_mask, capacity, dim=1)
        self.source_mask[slots] = F.pad(mask, (0, capacity - length))
        for state, project in zip(self.sources, self.projections, strict=True):
            state.write(slots, project(hidden), self.num_slots, capacity)


def token_cache(slots: int, slot_length: int, device: torch.device) -> Cache:
    """A cache of the tokens themselves."""
    return Cache(slots, slot_length, [TokenHistory(slots, slot_length, device)], device=device)


def append_tokens(
    cache: Cache, ids: Tensor, slots: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Write ids [B, T] into a `token_cache`: the texts [B, S], columns of ids [B, T]."""
    cache_slice = cache.begin(len(ids), ids.shape[1], slots, lengths)
    (tokens,) = cache.states
    assert isinstance(tokens, TokenHistory)
    cache.advance(cache_slice)
    return tokens.append(cache_slice, ids)


def state_like(weight: Tensor) -> Tensor:
    """An empty tensor of the precision and device of a state.

    On a CPU states are float32 at least: attention to bfloat16 takes six times as long there.
    """
    dtype = weight.dtype
    if weight.device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)
    return torch.empty(0, dtype=dtype, device=weight.device)


def _write_at(
    tensors: Sequence[Tensor], cache_slice: CacheSlice, columns: Tensor, key: Tensor, value: Tensor
) -> None:
    """Write keys and values [B, K, T, H] at columns, int64 [1 or B, T], of the slots of a pass."""
    slots = cache_slice.slots(len(key), key.device)[:, None]
    for kept, part in zip(tensors, (key, value), strict=True):
        kept[slots, :, columns] = part.transpose(1, 2)


def _with_columns(x: Tensor, length: int, *, dim: int) -> Tensor:
    """`x` with at least `length` positions in axis `dim`; new ones are 0."""
    missing = length - x.shape[dim]
    return F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing)) if missing > 0 else x
