"""Attention with a memory of earlier rows that sees both sides of a token: XLNet.

Shape letters: B batch, T positions, M remembered positions, D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import SerializeAsAny
from torch import Tensor
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.context import Context
from trivium.nn.mixers.attention import Attention, AttentionModule, Prepared
from trivium.nn.part import Count
from trivium.nn.patterns import Pattern
from trivium.nn.state import Span, State


class SegmentAttention(Attention):
    """Attention that remembers the last inputs of its layer: Transformer-XL (Dai et al. 2019).

    It remembers as many tokens as its pattern reaches: `pattern=Sliding(window=150)` is a memory of
    150 tokens, and a token sees the 150 before it, wherever segments begin. With a memory as long
    as the text it is the same as other attention. In training with state
    (`objective.carry_state`) a row is a segment.
    """

    encodes: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["segment-attention"] = "segment-attention"  # type: ignore[assignment]
    pattern: SerializeAsAny[Pattern]  # type: ignore[reportGeneralTypeIssues]

    @property
    def memory(self) -> int:
        """The number of tokens that a layer remembers."""
        return self.pattern.reach or 0  # `check` refuses a pattern without a reach

    def check(self) -> None:
        """Raise SpecError for a memory without an end."""
        super().check()
        if self.pattern.reach is None:
            raise SpecError(
                f'a pattern of kind "{self.pattern.kind}" reaches all tokens, and the memory of '
                "segment-attention has an end: give it Sliding(window=...)."
            )

    def build(self, d_model: int, **options: Any) -> SegmentAttentionModule:
        """See `Mixer.build`."""
        return SegmentAttentionModule(self, d_model, **options)


class MemoryAttention(Attention):
    """Attention of an encoder to its row and to the last `memory` inputs of its layer before it.

    Rows that continue each other are read so in training with state (`objective.carry_state`);
    elsewhere it is `Attention`. Source: Yang et al. 2019 (XLNet), section 2.4.
    """

    decodes: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["memory-attention"] = "memory-attention"  # type: ignore[assignment]
    memory: Count

    def build(self, d_model: int, **options: Any) -> MemoryAttentionModule:
        """See `Mixer.build`."""
        return MemoryAttentionModule(self, d_model, **options)


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


class SegmentAttentionModule(AttentionModule):
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
        return self.normed(self.query_norm, self.query(x)), *self.project(seen)


class MemoryAttentionModule(SegmentAttentionModule):
    """Keys and values are of [SG(memory), x], for tokens and for the queries of a second stream.

    What is remembered is known from the beginning of every order, and of sentence A.
    """

    part: MemoryAttention  # type: ignore[assignment]

    def prepare(self, context: Context, state: Any = None, table: Any = None) -> Prepared:
        """See `AttentionModule.prepare`; `state` is a `Memory`."""
        keys = context.keys
        if context.span is not None and state is not None:
            keys = self._with_memory(keys, state.columns(context.span, keys.columns))
            if context.custom is not None:
                custom = F.pad(context.custom, (self.part.memory, 0), value=True)
                context = replace(context, custom=custom)
        return self.prepare_for(context, keys, table)

    def _with_memory(self, keys: Context, columns: Tensor) -> Context:
        """The context of M remembered tokens and of those of the row, at these columns."""
        before = (self.part.memory, 0)
        real = columns <= columns[:, -1:]  # what is not there is later than all
        if keys.real is not None:
            real = real & F.pad(keys.real.bool(), before, value=True)
        types = None if keys.types is None else F.pad(keys.types, before)
        return replace(keys, positions=columns, columns=columns, real=real, types=types)
