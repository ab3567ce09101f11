"""Attention with a memory of earlier tokens: Transformer-XL and XLNet.

Shape letters: B batch, T positions, M remembered positions, D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.mixers.attention import Attention, AttentionModule, Prepared
from trivium.nn.part import Count
from trivium.nn.patterns import Pattern, Sliding
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import CacheSlice, State


class TransformerXLAttention(Attention):
    """Attention that remembers the last `memory` inputs of its layer.

    In a decoder a token sees the `memory` tokens before it, wherever segments begin (Dai et al.
    2019, Transformer-XL). In an encoder a row sees itself and the `memory` tokens before the row
    (Yang et al. 2019, XLNet, section 2.4). Rows that continue each other are read so in training
    with state (`objective.carry_state`), in which a row is a segment; elsewhere an encoder has no
    memory.
    """

    carries: ClassVar[bool] = True
    kind: Literal["transformer-xl-attention"] = "transformer-xl-attention"  # type: ignore[assignment]
    memory: Count

    def check(self) -> None:
        """Raise SpecError for a pattern."""
        super().check()
        if self.pattern:
            raise SpecError(
                "transformer-xl-attention sees as far as its memory: leave the pattern out and set "
                "memory."
            )

    def build(self, d_model: int, **options: Any) -> TransformerXLAttentionModule:
        """See `Mixer.build`."""
        return TransformerXLAttentionModule(self, d_model, **options)


# The column of what a slot does not hold: later than all, so that no token sees it.
_NEVER = 2**30


class Memory(State):
    """The last inputs of a layer, [slots, M, D], without their gradients; the newest is the last.

    It cannot be taken back, since what is older is gone.
    """

    def __init__(self, slots: int, length: int, width: int, like: Tensor) -> None:
        super().__init__(like.new_zeros(slots, length, width))

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """The columns of what `append` returns, of the new ones [1 or B, T]: [1 or B, M + T]."""
        back = torch.arange(-self.tensors[0].shape[1], 0, device=new.device)
        remembered = new[:, :1] + back
        return torch.cat((remembered.where(remembered >= 0, _NEVER), new), 1)

    def append(self, cache_slice: CacheSlice, x: Tensor) -> Tensor:
        """What is remembered, then x: [B, T, D] -> [B, M + T, D]. Remembers the last of both."""
        (memory,) = self.read(cache_slice)
        both = torch.cat((memory.to(x.dtype), x), 1)
        self.write(cache_slice, cache_slice.last(both, memory.shape[1]))
        return both


class TransformerXLAttentionModule(AttentionModule):
    """Keys and values are of [SG(memory), x], queries of x alone; SG stops gradients.

    Source: Dai et al. 2019, sections 3.2 and 3.3. In a decoder a token sees as many tokens before
    it as the memory holds, as in their evaluation; in their training later tokens of a segment saw
    all of the memory and of the segment before them. In an encoder what is remembered is known from
    the beginning of every order, and belongs to sentence A.
    """

    part: TransformerXLAttention

    def pattern_of(self, sequence: SequenceInfo) -> Pattern | None:
        """See `AttentionModule.pattern_of`."""
        return Sliding(window=self.part.memory) if sequence.causal else None

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return a memory of as many inputs as the part says."""
        return Memory(slots, self.part.memory, self.width, like)

    def prepare(self, sequence: SequenceInfo, state: Any = None, table: Any = None) -> Prepared:
        """See `AttentionModule.prepare`; `state` is a `Memory`."""
        keys = sequence.keys
        if sequence.cache_slice is not None and state is not None:
            keys = self._with_memory(keys, state.columns(sequence.cache_slice, keys.columns))
            if sequence.custom is not None:
                custom = F.pad(sequence.custom, (self.part.memory, 0), value=True)
                sequence = replace(sequence, custom=custom)
        return self.prepare_for(sequence, keys, table)

    def _with_memory(self, keys: SequenceInfo, columns: Tensor) -> SequenceInfo:
        """The context of M remembered tokens and of those of the row, at these columns."""
        before, is_token = (self.part.memory, 0), keys.is_token
        if not keys.causal:
            is_token = columns <= columns[:, -1:]  # what is not there is later than all
            if keys.is_token is not None:
                is_token = is_token & F.pad(keys.is_token.bool(), before, value=True)
        types = None if keys.types is None else F.pad(keys.types, before)
        return replace(keys, positions=columns, columns=columns, is_token=is_token, types=types)

    def _query_key_value(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        seen = x[:, : sequence.num_keys]
        if sequence.cache_slice is not None and state is not None:
            seen = state.append(sequence.cache_slice, seen)
        return self.normed(self.query_norm, self.query(x)), *self.project(seen)
