"""Residual connections, with norms in three places.

Shape letters: D d_model.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.nn.norm import build_norm
from trivium.nn.precision import to_autocast_dtype


class Residual(nn.Module):
    """after(x + dropout(branch(f(before(x))))), for a function f.

    A norm `before` is pre-norm: the residual stream is never normalised (GPT-2, LLaMA). One
    `after` is post-norm, as first published (Vaswani et al. 2017, BERT). With `branch` and
    `before` it is the sandwich of Gemma 2 (Gemma Team 2024).

    Args:
        norm: the norm of a stack.
        norms: the places that have one.
        width: D.
        dropout: of what is added to the stream.
    """

    def __init__(self, norm: spec.Norm, norms: Collection[str], width: int, dropout: float) -> None:
        super().__init__()
        self.before, self.branch, self.after = (
            build_norm(norm if place in norms else None, width)
            for place in ("before", "branch", "after")
        )
        self.dropout = dropout

    def enter(self, x: Tensor) -> Tensor:
        """What the function reads: [..., D] -> [..., D]."""
        return to_autocast_dtype(self.before(x))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream [..., D] with what the function made of it, y [..., D]."""
        return self.after(x + F.dropout(self.branch(y), self.dropout, self.training))
