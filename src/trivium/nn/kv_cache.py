"""Caches with fixed slots: a text holds one slot from its first token to its last.

A slot is filled from the left and never moves; positions after its length are never attended to.
A sliding window is a mask (`nn.mask`): the cache keeps every position, so a window saves no memory.

Shape letters: B rows of a call, T new positions, S cached positions, K key-value heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError

Projection = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class CacheSpan:
    """Where one forward pass writes: which slots, and from which position on.

    Args:
        rows: the slots, int64 [B], or the slice of the first B.
        start: tokens that the slots hold: one number where it is the same for all, else int64 [B].
        length: T, new positions of every row.
        new: int64 [B], how many of them are real; None: all.
        end: S, positions that the longest row needs.
    """

    rows: slice | Tensor
    start: int | Tensor
    length: int
    new: Tensor | None
    end: int

    def positions(self, device: torch.device) -> Tensor:
        """Where the new positions are in their slots: int64 [1 or B, T]."""
        start = self.start if isinstance(self.start, int) else self.start[:, None]
        return start + torch.arange(self.length, device=device)[None]


class SlotCache:
    """What every cache has: slots, and how many tokens each holds.

    Args:
        num_slots: texts that it holds at a time.
        slot_length: tokens of each, prompt included, at most.
        device: where `lengths`, int64 [slots], is kept.
    """

    def __init__(self, num_slots: int, slot_length: int, device: torch.device) -> None:
        self.num_slots, self.slot_length = num_slots, slot_length
        self.lengths = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def begin(
        self, batch: int, length: int, slots: Tensor | None, lengths: Tensor | None
    ) -> CacheSpan:
        """The span of `batch` rows of `length` positions; see `Transformer.forward`.

        Raises:
            SpecError: more tokens than `slot_length`.
        """
        rows = slice(batch) if slots is None else slots
        start = self.lengths[rows].clone()
        if torch.compiler.is_compiling():  # shapes that do not depend on what the slots hold
            return CacheSpan(rows, start, length, lengths, self.slot_length)
        first, last = (int(bound) for bound in start.aminmax())
        needed = last + length if lengths is None else int((start + lengths).max())
        if needed > self.slot_length:
            raise SpecError(
                f"a slot of this cache would hold {needed} tokens, but slot_length is "
                f"{self.slot_length}: make longer slots, or free the slot."
            )
        end = min(last + length, self.slot_length)
        return CacheSpan(rows, first if first == last else start, length, lengths, end)

    def advance(self, span: CacheSpan) -> None:
        """Count the new tokens, after all layers have read and written."""
        self.lengths[span.rows] += span.length if span.new is None else span.new

    def free(self, slot: int) -> None:
        """Make a slot empty."""
        self.lengths[slot] = 0

    def set_lengths(self, slots: Tensor, lengths: Tensor) -> None:
        """Shorten slots, int64 [n], to fewer tokens, int64 [n]."""
        self.lengths[slots] = lengths

    def copy(self, source: Tensor, target: Tensor, *, copy_memory: bool = True) -> None:
        """Copy the texts of slots, int64 [n], into others; both may name the same slots.

        Args:
            source: slots to copy from.
            target: slots to copy into.
            copy_memory: whether keys and values of the encoder's output are copied too; not
                needed where both slots have the same source, as beams of one prompt do.
        """
        self.lengths[target] = self.lengths[source]


class TokenCache(SlotCache):
    """The tokens in every slot, for models that read them again at every step.

    `ids` are int64 [slots, slot_length + 1]; the last column takes padding.
    """

    def __init__(self, num_slots: int, slot_length: int, *, device: torch.device) -> None:
        super().__init__(num_slots, slot_length, device)
        self.ids = torch.zeros(num_slots, slot_length + 1, dtype=torch.int64, device=device)

    def append(
        self, ids: Tensor, slots: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Write ids [B, T] behind what the slots hold: their slots [B, 1] and columns [B, T]."""
        span = self.begin(len(ids), ids.shape[1], slots, lengths)
        columns = span.positions(ids.device).expand_as(ids).clamp(max=self.slot_length)
        rows = torch.arange(self.num_slots, device=ids.device)[span.rows][:, None]
        self.ids[rows, columns] = ids
        self.advance(span)
        return rows, columns

    def copy(self, source: Tensor, target: Tensor, *, copy_memory: bool = True) -> None:
        """As `SlotCache.copy`."""
        super().copy(source, target)
        self.ids[target] = self.ids[source]


@dataclass
class LayerCache:
    """Keys and values of one layer: two tensors [slots, K, slot_length + 1, H].

    The last position takes what padding would write after the end of a slot. `memory` are keys and
    values of the encoder's output for cross-attention, [slots, K, S, H].
    """

    keys: Tensor
    values: Tensor
    memory: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class LayerCacheView:
    """The cache of one layer and where one forward pass writes into it."""

    layer: LayerCache
    span: CacheSpan

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write [B, K, T, H] after what the slots hold, and return all that may be attended to.

        Returns:
            Keys and values [B, K, S, H]: the arguments themselves where the slots were empty, else
            the cache, as views where the slots are the first ones.
        """
        keys, values, span = self.layer.keys, self.layer.values, self.span
        key, value = key.to(keys.dtype), value.to(keys.dtype)
        start, rows, last = span.start, span.rows, keys.shape[2] - 1
        if isinstance(start, int) and isinstance(rows, slice) and start + span.length <= last:
            keys[rows, :, start : start + span.length] = key
            values[rows, :, start : start + span.length] = value
        else:
            if isinstance(rows, slice):
                rows = torch.arange(len(key), device=key.device)
            index = rows[:, None], slice(None), span.positions(key.device).clamp(max=last)
            keys[index] = key.transpose(1, 2)
            values[index] = value.transpose(1, 2)
        if isinstance(start, int) and start == 0:
            return key, value
        return keys[span.rows, :, : span.end], values[span.rows, :, : span.end]

    @property
    def memory(self) -> tuple[Tensor, Tensor] | None:
        """Keys and values [B, K, S, H] of the encoder's output, after `KVCache.set_memory`."""
        if self.layer.memory is None:
            return None
        keys, values = self.layer.memory
        return keys[self.span.rows], values[self.span.rows]


class KVCache(SlotCache):
    """Keys and values of a stack's layers in fixed slots, and of an encoder's output.

    Args:
        stack: the stack whose layers are cached.
        num_slots: texts that it holds at a time.
        slot_length: tokens of each, prompt included, at most.
        dtype: precision of the model. On a CPU keys and values are float32 in any case: attention
            to bfloat16 takes six times as long there.
        cross_projections: of every layer, what makes keys and values of the encoder's output.
    """

    def __init__(
        self,
        stack: spec.Stack,
        num_slots: int,
        slot_length: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        cross_projections: Sequence[Projection] = (),
    ) -> None:
        super().__init__(num_slots, slot_length, device)
        if device.type == "cpu":
            dtype = torch.promote_types(dtype, torch.float32)
        self.cross_projections = cross_projections
        self.memory_mask: Tensor | None = None  # bool [slots, S]
        self.layers: list[LayerCache] = []
        for attention in stack.attentions:
            shape = (num_slots, attention.kv_heads, slot_length + 1, attention.head_dim)
            keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
            self.layers.append(LayerCache(keys, values))

    def at(self, span: CacheSpan) -> list[LayerCacheView]:
        """What the attention of every layer reads and writes in one forward pass."""
        return [LayerCacheView(layer, span) for layer in self.layers]

    def set_memory(
        self, slots: Tensor, memory: Tensor, attention_mask: Tensor | None = None
    ) -> None:
        """Project an encoder's output [n, S, D] once, for all tokens that slots [n] will decode.

        All slots take as many positions as the longest source so far: the first source sets the
        number, a longer one raises it to a power of two, and it never shrinks. Every position
        takes 2 * K * H numbers per layer: 8 slots of T5-base at 512 tokens take 300 MB in float32.

        Args:
            slots: int64 [n].
            memory: hidden states of `Transformer.encode`.
            attention_mask: [n, S], nonzero where a source token is real.
        """
        length = memory.shape[1]
        mask = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)
        if attention_mask is not None:
            mask = attention_mask.bool()
        if self.memory_mask is None:
            self.memory_mask = mask.new_zeros(self.num_slots, length)
        capacity = self.memory_mask.shape[1]
        if length > capacity:  # powers of two: few shapes for a compiled decode step
            capacity = max(64, 1 << (length - 1).bit_length())
        self.memory_mask = _with_columns(self.memory_mask, capacity, dim=1)
        self.memory_mask[slots] = F.pad(mask, (0, capacity - length))
        for layer, project in zip(self.layers, self.cross_projections, strict=True):
            new = [part.to(layer.keys.dtype) for part in project(memory)]
            if layer.memory is None:
                shape = (self.num_slots, *new[0].shape[1:])
                layer.memory = new[0].new_zeros(shape), new[1].new_zeros(shape)
            keys, values = (_with_columns(part, capacity, dim=2) for part in layer.memory)
            keys[slots, :, :length], values[slots, :, :length] = new
            layer.memory = keys, values

    def copy(self, source: Tensor, target: Tensor, *, copy_memory: bool = True) -> None:
        """As `SlotCache.copy`."""
        length = int(self.lengths[source].max()) if len(source) else 0
        for layer in self.layers:
            for part in (layer.keys, layer.values):
                part[target, :, :length] = part[source, :, :length]
            for part in layer.memory or () if copy_memory else ():
                part[target] = part[source]
        if copy_memory and self.memory_mask is not None:
            self.memory_mask[target] = self.memory_mask[source]
        super().copy(source, target)


def _with_columns(x: Tensor, length: int, *, dim: int) -> Tensor:
    """`x` with at least `length` positions in axis `dim`; new ones are 0."""
    missing = length - x.shape[dim]
    return F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing)) if missing > 0 else x
