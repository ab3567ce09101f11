"""XLNet's relative position encoding: Transformer-XL's, plus a score term for token types.

Shape letters: B batch, T query positions, S key positions, N heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.positions.transformer_xl import (
    RelativeDistances,
    TransformerXLPositions,
    TransformerXLPositionsModule,
)
from trivium.nn.sequence_info import SequenceInfo


class XLNetPositions(TransformerXLPositions):
    """XLNet's relative positions and segment encodings (Yang et al. 2019, section 2.5).

    Token types are not embedded: scores depend only on whether query and key have the same type.
    The three types are sentence A, sentence B and the CLS token.
    """

    num_token_types: ClassVar[int] = 3
    kind: Literal["xlnet"] = "xlnet"  # type: ignore[assignment]

    def build(self, attention: Any, d_model: int) -> XLNetPositionsModule:
        """Return the module `XLNetPositionsModule`. See `Positions.build`."""
        return XLNetPositionsModule(attention, d_model)


@dataclass(frozen=True)
class TypedDistances(RelativeDistances):
    """Distances of query-key pairs, and whether their token types differ: bool [B, 1, T, S]."""

    differ: Tensor | None = None


class XLNetPositionsModule(TransformerXLPositionsModule):
    """Transformer-XL's relative scores plus (q_i + b)^T s / sqrt(H), where s is one of two vectors.

    s is the first vector if query and key have the same token type, otherwise the second. Without
    token types the term is omitted. This does not change the attention weights: if all types are
    equal, the term adds the same number to all scores of a query.
    Source: Yang et al. 2019, section 2.5 (relative segment encodings).
    """

    parallel: ClassVar[Mapping[str, str]] = {
        **TransformerXLPositionsModule.parallel,
        "type_bias": "column",
    }

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__(attention, width)
        heads = attention.num_heads * attention.head_dim
        self.type_bias = nn.Parameter(torch.empty(heads))  # b
        self.types = nn.Parameter(torch.empty(2, heads))  # s

    def prepare(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> TypedDistances:
        """Return the distances of query-key pairs, and whether their token types differ."""
        ready, differ = super().prepare(sequence, keys, table), None
        if sequence.types is not None:
            if keys.types is None:
                raise SpecError("a cache keeps no token types: leave token_type_ids out.")
            differ = (sequence.types[:, :, None] != keys.types[:, None, :])[:, None]
        return TypedDistances(ready.vectors, ready.index, differ)

    def scores(self, query: Tensor, key: Tensor, prepared: Any) -> Tensor:
        """Return Transformer-XL's position scores plus the token type term: [B, N, T, S]."""
        scores = super().scores(query, key, prepared)
        if prepared.differ is None:
            return scores
        shape = self.attention.num_heads, self.attention.head_dim
        bias, types = (w.to(key.dtype).unflatten(-1, shape) for w in (self.type_bias, self.types))
        by_type = (query.to(key.dtype) + bias[:, None]) @ types.permute(1, 2, 0)  # [B, N, T, 2]
        same, other = by_type.unbind(-1)
        return scores + self.scale * torch.where(prepared.differ, other[..., None], same[..., None])
