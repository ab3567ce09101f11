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

    In a decoder, a token attends to itself and the previous `memory` tokens, across segment
    boundaries (Dai et al. 2019, Transformer-XL). In an encoder, the tokens of a row attend to each
    other and to the `memory` tokens before the row (Yang et al. 2019, XLNet, section 2.4). The
    tokens before the row are known only in stateful training (`objective.carry_state`), where each
    row continues an earlier row; otherwise an encoder has no memory.
    """

    carries_state: ClassVar[bool] = True
    kind: Literal["transformer-xl-attention"] = "transformer-xl-attention"  # type: ignore[assignment]
    memory: Count

    def check(self) -> None:
        """Raise SpecError if an attention pattern is set: `memory` already sets the window."""
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
    """The memory of a layer: its last M inputs, [slots, M, D], detached, the newest one last.

    Tokens cannot be removed from the memory (`Cache.crop`), because older inputs are discarded.
    """

    def __init__(self, slots: int, length: int, width: int, like: Tensor) -> None:
        super().__init__(like.new_zeros(slots, length, width))

    def columns(self, cache_slice: CacheSlice, new: Tensor) -> Tensor:
        """Return the position of each entry of the memory and of each new token.

        Positions are counted from the first token of the sequence. Empty entries of the memory get
        the position 2^30, after all tokens, so that causal attention ignores them.

        Args:
            cache_slice: the slots and positions of the forward pass.
            new: int64 [1 or B, T], the positions of the new tokens.

        Returns:
            int64 [1 or B, M + T], in the order of the result of `append`.
        """
        back = torch.arange(-self.tensors[0].shape[1], 0, device=new.device)
        memory_columns = new[:, :1] + back
        return torch.cat((memory_columns.where(memory_columns >= 0, _EMPTY_COLUMN), new), 1)

    def append(self, cache_slice: CacheSlice, x: Tensor) -> Tensor:
        """Return the memory followed by the new inputs x: [B, T, D] -> [B, M + T, D].

        The last M of these inputs, without padding, become the new memory.
        """
        (memory,) = self.read(cache_slice)
        memory_and_input = torch.cat((memory.to(x.dtype), x), 1)
        self.write(cache_slice, cache_slice.last(memory_and_input, memory.shape[1]))
        return memory_and_input


class TransformerXLAttentionModule(AttentionModule):
    """Attention with keys and values from the memory and x, and queries from x.

    No gradient flows into the memory. In a decoder, every token attends to the previous M tokens,
    as in the paper's evaluation. In the paper's training, in contrast, a token attends to the whole
    memory and to all earlier tokens of the segment, so later tokens attend to more than M tokens.
    In an encoder, the memory is visible in every permutation order and has the token type of
    sentence A.

    Source: Dai et al. 2019, sections 3.2 and 3.3.
    """

    part: TransformerXLAttention

    def get_pattern(self, sequence: SequenceInfo) -> Pattern | None:
        """Return a sliding window of `memory` tokens for a causal forward pass, otherwise None."""
        return Sliding(window=self.part.memory) if sequence.causal else None

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty memory for the last `part.memory` inputs of the layer.

        `length` is ignored because the memory has a fixed size.
        """
        return Memory(slots, self.part.memory, self.width, like)

    def prepare(self, sequence: SequenceInfo, state: Any = None, table: Any = None) -> Prepared:
        """Return the attention mask and the position data, with the memory as additional keys.

        `state` is the layer's `Memory`; if it is None, there is no memory. See
        `AttentionModule.prepare`.
        """
        keys = sequence.keys
        if sequence.cache_slice is not None and state is not None:
            keys = self._prepend_memory(keys, state.columns(sequence.cache_slice, keys.columns))
            if sequence.custom is not None:
                custom = F.pad(sequence.custom, (self.part.memory, 0), value=True)
                sequence = replace(sequence, custom=custom)
        return self.prepare_for_keys(sequence, keys, table)

    def _prepend_memory(self, keys: SequenceInfo, columns: Tensor) -> SequenceInfo:
        """Return the metadata of all M + T key tokens: the memory followed by those of the row.

        Args:
            keys: the metadata of the row's T key tokens.
            columns: int64 [1 or B, M + T], the positions returned by `Memory.columns`.
        """
        before, is_token = (self.part.memory, 0), keys.is_token
        if not keys.causal:
            is_token = columns <= columns[:, -1:]  # empty memory positions have the latest column
            if keys.is_token is not None:
                is_token = is_token & F.pad(keys.is_token.bool(), before, value=True)
        types = None if keys.types is None else F.pad(keys.types, before)
        return replace(keys, positions=columns, columns=columns, is_token=is_token, types=types)

    def _compute_qkv(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of x, and the keys and values of the memory followed by x.

        Appends x to the memory `state`.
        """
        key_value_states = x[:, : sequence.num_keys]
        if sequence.cache_slice is not None and state is not None:
            key_value_states = state.append(sequence.cache_slice, key_value_states)
        return self.split_and_norm(self.query_norm, self.query(x)), *self.project_kv(
            key_value_states
        )
