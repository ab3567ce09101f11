"""Attention to a few blocks of a long text."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trivium.errors import SpecError
from trivium.spec.mixers.attention import Attention
from trivium.spec.part import Count


class BlockSparseAttention(Attention):
    """Attention of blocks of `block_size` tokens to a few other blocks: BigBird.

    A block sees itself and its neighbours, the first and the last one, and `num_random` more. The
    first and the last one see all. In a text of at most `dense_length` tokens all tokens do.

    While it trains, every head draws its random blocks from `seed`, the same ones in every step;
    otherwise the first block is in the place of each, as in `transformers`. In the code of the
    authors the random blocks stay. Layers whose seeds differ draw other blocks.

    Source: Zaheer et al. 2020, section 2, with global tokens inside of the text (ITC).
    """

    decodes: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    kind: Literal["block-sparse-attention"] = "block-sparse-attention"  # type: ignore[assignment]
    block_size: Count
    num_random: Annotated[int, Field(ge=0, lt=2**15)]
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    def check(self) -> None:
        """Raise SpecError for a pattern or for positions in attention."""
        super().check()
        if self.positions or self.pattern:
            raise SpecError(
                f"{self.kind} has a pattern of its own and no positions: leave pattern and "
                "positions out, and give the model absolute ones (embedding.positions)."
            )

    @property
    def dense_length(self) -> int:
        """Tokens of the longest text in which all see all: 5 + 2 `num_random` blocks."""
        return (5 + 2 * self.num_random) * self.block_size

    @property
    def divided(self) -> dict[str, int]:
        """See `Mixer.divided`: nothing, since heads draw their blocks in turn."""
        return {}

    def seen(self, length: float) -> float:
        """Keys that are computed of a query, on average in a text of so many tokens.

        Those of the first and the last block are computed twice: as of others, and of all tokens.
        """
        if length <= self.dense_length:
            return length
        return (7 + self.num_random) * self.block_size

    def flops(self, attended: float) -> float:
        """See `Attention.flops`, of the keys that are computed."""
        return super().flops(self.seen(attended))

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """See `Attention.kept_numbers`; of long texts also the keys and values of the blocks that
        each sees, and queries and outputs where they are merged.
        """
        copies = 0 if length <= self.dense_length else 2 * (6 + self.num_random)
        kept = super().kept_numbers(
            int(self.seen(length)), item=item, on_cpu=on_cpu, dropout=dropout
        )
        return kept + copies * self.num_heads * self.head_dim
