"""Attention with a memory of earlier rows that sees both sides of a token: XLNet.

Shape letters: B batch, T positions, M remembered positions, D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from trivium.nn.context import Context
from trivium.nn.mixers.attention import Prepared
from trivium.nn.mixers.segment_attention import SegmentAttentionMixer
from trivium.spec.mixers.memory_attention import MemoryAttention


class MemoryAttentionMixer(SegmentAttentionMixer, of=MemoryAttention):
    """Keys and values are of [SG(memory), x], for tokens and for the queries of a second stream.

    What is remembered is known from the beginning of every order, and of sentence A.
    """

    part: MemoryAttention  # type: ignore[assignment]

    def prepare(self, context: Context, state: Any = None, table: Any = None) -> Prepared:
        """See `AttentionMixer.prepare`; `state` is a `Memory`."""
        keys = context.keys
        if context.span is not None and state is not None:
            keys = self._with_memory(keys, state.columns(context.span, keys.columns))
        return self.prepare_for(context, keys, table)

    def _with_memory(self, keys: Context, columns: Tensor) -> Context:
        """The context of M remembered tokens and of those of the row, at these columns."""
        before = (self.part.memory, 0)
        real = columns <= columns[:, -1:]  # what is not there is later than all
        if keys.real is not None:
            real = real & F.pad(keys.real.bool(), before, value=True)
        order, types = (None if x is None else F.pad(x, before) for x in (keys.order, keys.types))
        return replace(
            keys, positions=columns, columns=columns, real=real, order=order, types=types
        )
