"""A mixer and a feed-forward network side by side."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.blocks import BlockKind


class ParallelLayers(BlockKind):
    """x + mixer(norm(x)) + feed_forward(norm(x)).

    With one norm for both (PaLM, Chowdhery et al. 2022) or each with its own (GPT-NeoX, Black et
    al. 2022).
    """

    additions: ClassVar[int] = 1
    kind: Literal["parallel"] = "parallel"
    norms: Literal["shared", "separate"] = "shared"

    @property
    def reads(self) -> int:
        """As `BlockKind.reads`."""
        return 1 if self.norms == "shared" else 2
