"""Attention that remembers earlier rows and sees both sides of a token."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.mixers.attention import Attention
from trivium.spec.part import Count


class MemoryAttention(Attention):
    """Attention of an encoder to its row and to the last `memory` inputs of its layer before it.

    Rows that continue each other are read so in training with state (`objective.carry_state`);
    elsewhere it is `Attention`. Source: Yang et al. 2019 (XLNet), section 2.4.
    """

    decodes: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["memory-attention"] = "memory-attention"  # type: ignore[assignment]
    memory: Count
