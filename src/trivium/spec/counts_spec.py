"""The spec of an n-gram model of counts, which is not trained but counted."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from trivium.errors import SpecError
from trivium.spec.base_spec import Spec
from trivium.spec.heads import HeadInput, Heads
from trivium.spec.heads.vocabulary import LMHead
from trivium.spec.part import Positive


class NGramCountsSpec(Spec):
    """The n-1 tokens before predict the next, by how often it followed them in the text.

    With c(h w) how often the token w follows the context h, and V tokens:

        add-k        P(w | h) = (c(h w) + k) / (c(h) + k V)
        kneser-ney   P(w | h) = (max(c(h w) - D, 0) + D N(h) P(w | h')) / c(h)

    N(h) is the number of different tokens after h, and h' is h without its oldest token. Below the
    highest order c(h w) is the number of different tokens before h w; below the lowest is 1 / V.
    D of an order is n1 / (n1 + 2 n2), of n1 n-grams that occur once and n2 that do twice, unless
    `discount` sets it for all.

    Source: Chen and Goodman 1998, section 2.1 (additive) and 2.7 (Kneser-Ney), interpolated as in
    section 3; Ney et al. 1994 for D.
    """

    counts: ClassVar[bool] = True
    takes_heads: ClassVar[bool] = False  # it has no hidden states
    kind: Literal["n-gram-counts"] = "n-gram-counts"
    order: Annotated[int, Field(ge=1)]
    smoothing: Literal["kneser-ney", "add-k"] = "kneser-ney"
    k: Positive = 1.0
    discount: Annotated[float, Field(gt=0, le=1)] | None = None
    d_model: Any = 0  # it has no hidden states
    heads: Heads = (LMHead(tied=True),)

    def check(self) -> None:
        """Raise SpecError for a width, and for any head but the tied LM head."""
        super().check()
        if self.d_model != 0 or any(head != LMHead(tied=True) for head in self.heads):
            raise SpecError(
                "an n-gram model of counts has no vectors: leave d_model and heads out of its spec."
            )

    def with_dropout(self, dropout: float) -> Self:
        """The same: there is nothing to drop."""
        return self

    def kept_bytes(self, length: int, item: int, *, on_cpu: bool, recompute: bool = False) -> int:
        """Nothing: there is no backward pass."""
        return 0

    @property
    def head_input(self) -> HeadInput:
        """What the heads are built with."""
        return HeadInput(self.vocab_size, d_model=0, d_embedding=0)
