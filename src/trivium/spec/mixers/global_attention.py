"""Attention to near tokens, and of a few tokens to all."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import SerializeAsAny

from trivium.errors import SpecError
from trivium.spec.mixers.attention import Attention
from trivium.spec.patterns import Pattern


class GlobalAttention(Attention):
    """Attention as its pattern allows, but global tokens see all and are seen by all: Longformer.

    Global tokens have queries, keys and values of their own (Beltagy et al. 2020, section 3.1).
    Which tokens are global is a matter of the task (`Head.global_tokens`).
    """

    decodes: ClassVar[bool] = False
    has_global_tokens: ClassVar[bool] = True
    kind: Literal["global-attention"] = "global-attention"  # type: ignore[assignment]
    pattern: SerializeAsAny[Pattern]  # type: ignore[reportGeneralTypeIssues]

    def check(self) -> None:
        """Raise SpecError for positions in attention."""
        super().check()
        if self.positions:
            raise SpecError(
                f'global-attention has no positions of its own, such as "{self.positions.kind}": '
                "give the model absolute ones (embedding.positions)."
            )

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Also the keys and values that global tokens see."""
        own = 2 * self.kv_heads * self.head_dim
        return super().kept_numbers(length, item=item, on_cpu=on_cpu, dropout=dropout) + own
