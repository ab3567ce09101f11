"""A mixer and a feed-forward network side by side."""

from __future__ import annotations

from typing import Literal

from trivium.spec.blocks import BlockKind


class ParallelLayers(BlockKind):
    """x + mixer(norm(x)) + feed_forward(norm(x)).

    With one norm for both (PaLM, Chowdhery et al. 2022) or each with its own (GPT-NeoX, Black et
    al. 2022).
    """

    kind: Literal["parallel"] = "parallel"
    norms: Literal["shared", "separate"] = "shared"
