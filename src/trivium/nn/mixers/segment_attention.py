"""Attention with a memory of earlier segments: Transformer-XL.

Shape letters: B batch, T new positions, M remembered positions, D width, N heads, K key-value
heads, H head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trivium.nn.context import Context
from trivium.nn.mixers.attention import AttentionMixer, Prepared
from trivium.nn.state import Span, State
from trivium.spec.mixers.memory_attention import MemoryAttention
from trivium.spec.mixers.segment_attention import SegmentAttention

# The column of what a slot does not hold: later than all, so that no token sees it.
_NEVER = 2**30


class Memory(State):
    """The last inputs of a layer, [slots, M, D], without their gradients; the newest is the last.

    It cannot be taken back, since what is older is gone.
    """

    def __init__(self, slots: int, length: int, width: int, like: Tensor) -> None:
        super().__init__(like.new_zeros(slots, length, width))

    def columns(self, span: Span, new: Tensor) -> Tensor:
        """The columns of what `append` returns, of the new ones [1 or B, T]: [1 or B, M + T]."""
        back = torch.arange(-self.tensors[0].shape[1], 0, device=new.device)
        remembered = new[:, :1] + back
        return torch.cat((remembered.where(remembered >= 0, _NEVER), new), 1)

    def append(self, span: Span, x: Tensor) -> Tensor:
        """What is remembered, then x: [B, T, D] -> [B, M + T, D]. Remembers the last of both."""
        (memory,) = self.read(span)
        both = torch.cat((memory.to(x.dtype), x), 1)
        self.write(span, span.last(both, memory.shape[1]))
        return both


class SegmentAttentionMixer(AttentionMixer, of=SegmentAttention):
    """Keys and values are of [SG(memory), x], queries of x alone; SG stops gradients.

    Source: Dai et al. 2019, sections 3.2 and 3.3. A token sees as many tokens before it as the
    memory holds, as in their evaluation; in their training later tokens of a segment saw all of
    the memory and of the segment before them.
    """

    part: SegmentAttention | MemoryAttention

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return a memory of as many inputs as the part says."""
        return Memory(slots, self.part.memory, self.width, like)

    def _query_key_value(
        self, x: Tensor, context: Context, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        seen = x[:, : context.num_keys]
        if context.span is not None and state is not None:
            seen = state.append(context.span, seen)
        return self._heads(self.query(x)), *self.project(seen)
