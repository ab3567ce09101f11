"""Attention with a memory of earlier tokens: Transformer-XL and XLNet.

Shape letters: B batch, T positions, M memory positions, D width.
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
    """Attention with a memory of the last `memory` inputs of the layer (Transformer-XL, XLNet).

    In a decoder a token attends to itself and the previous `memory` tokens, across segment
    boundaries (Dai et al. 2019, Transformer-XL). In an encoder a row attends to itself and to the
    `memory` tokens before the row (Yang et al. 2019, XLNet, section 2.4). In stateful training
    (`objective.carry_state`) every row is a segment that continues another row. Outside of stateful
    training an encoder has no memory.
    """

    carries_state: ClassVar[bool] = True
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


# The column of an empty memory position: later than all tokens, so no token attends to it.
_EMPTY_COLUMN = 2**30


class Memory(State):
    """Memory of the last inputs of a layer, [slots, M, D], detached, with the newest input last.

    The memory cannot be rolled back because older inputs are discarded.
    """

    def __init__(self, slots: int, length: int, width: int, like: Tensor) -> None:
        super().__init__(like.new_zeros(slots, length, width))

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """Return the columns of the result of `append`: new [1 or B, T] -> [1 or B, M + T]."""
        back = torch.arange(-self.tensors[0].shape[1], 0, device=new.device)
        memory_columns = new[:, :1] + back
        return torch.cat((memory_columns.where(memory_columns >= 0, _EMPTY_COLUMN), new), 1)

    def append(self, cache_slice: CacheSlice, x: Tensor) -> Tensor:
        """Return the memory followed by x: [B, T, D] -> [B, M + T, D]. Stores the last M inputs."""
        (memory,) = self.read(cache_slice)
        memory_and_input = torch.cat((memory.to(x.dtype), x), 1)
        self.write(cache_slice, cache_slice.last(memory_and_input, memory.shape[1]))
        return memory_and_input


class TransformerXLAttentionModule(AttentionModule):
    """Keys and values are computed from [memory, x] and queries from x; the memory is detached.

    In a decoder every token attends to the previous M tokens, as in the paper's evaluation. In the
    paper's training a token attends to the whole memory and to all earlier tokens of the segment,
    so later tokens attend to more than M tokens. In an encoder the memory is visible in every
    permutation order and belongs to sentence A.

    Source: Dai et al. 2019, sections 3.2 and 3.3.
    """

    part: TransformerXLAttention

    def get_pattern(self, sequence: SequenceInfo) -> Pattern | None:
        """Return a sliding window of the memory's size for a causal pass, otherwise None."""
        return Sliding(window=self.part.memory) if sequence.causal else None

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty memory of fixed size, for `part.memory` inputs."""
        return Memory(slots, self.part.memory, self.width, like)

    def prepare(self, sequence: SequenceInfo, state: Any = None, table: Any = None) -> Prepared:
        """See `AttentionModule.prepare`; `state` is a `Memory`."""
        keys = sequence.keys
        if sequence.cache_slice is not None and state is not None:
            keys = self._prepend_memory(keys, state.columns(sequence.cache_slice, keys.columns))
            if sequence.custom is not None:
                custom = F.pad(sequence.custom, (self.part.memory, 0), value=True)
                sequence = replace(sequence, custom=custom)
        return self.prepare_for(sequence, keys, table)

    def _prepend_memory(self, keys: SequenceInfo, columns: Tensor) -> SequenceInfo:
        """Return the `SequenceInfo` of the memory followed by the row: M + T tokens."""
        before, is_token = (self.part.memory, 0), keys.is_token
        if not keys.causal:
            is_token = columns <= columns[:, -1:]  # empty memory positions have the latest column
            if keys.is_token is not None:
                is_token = is_token & F.pad(keys.is_token.bool(), before, value=True)
        types = None if keys.types is None else F.pad(keys.types, before)
        return replace(keys, positions=columns, columns=columns, is_token=is_token, types=types)

    def _query_key_value(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of x, and keys and values of memory and x. Appends x to the memory."""
        key_value_states = x[:, : sequence.num_keys]
        if sequence.cache_slice is not None and state is not None:
            key_value_states = state.append(sequence.cache_slice, key_value_states)
        return self.split_and_norm(self.query_norm, self.query(x)), *self.project_kv(
            key_value_states
        )
