"""Attention, with the positions and the pattern that it is asked for."""

from __future__ import annotations

from typing import Literal

from pydantic import SerializeAsAny

from trivium.errors import SpecError
from trivium.spec.mixers import Mixer
from trivium.spec.norms import Norm
from trivium.spec.part import Count, Positive
from trivium.spec.patterns import Pattern
from trivium.spec.positions import Positions


class Attention(Mixer):
    """Multi-head attention; with fewer key-value heads than query heads it is grouped-query.

    Q K^T is multiplied by `scale`, head_dim^-0.5 unless set; where positions add n products to it,
    the sum is, by ((1 + n) head_dim)^-0.5. With `qk_norm` the queries and keys of
    every head are normalised first, before positions turn them (Henry et al. 2020; Qwen3). With
    `soft_cap` c a score s is c tanh(s / c) (Gemma 2), before biases of positions are added.
    """

    kind: Literal["attention"] = "attention"
    num_heads: Count
    head_dim: Count
    num_kv_heads: Count | None = None
    bias: bool = True
    key_bias: bool | None = None
    output_bias: bool | None = None
    scale: Positive | None = None
    qk_norm: Norm | None = None
    soft_cap: Positive | None = None
    pattern: SerializeAsAny[Pattern] | None = None
    positions: SerializeAsAny[Positions] | None = None

    @property
    def kv_heads(self) -> int:
        """Key-value heads: `num_kv_heads`, or as many as query heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def has_key_bias(self) -> bool:
        """Whether the matrix of keys has a bias: `key_bias`, or as the others."""
        return self.bias if self.key_bias is None else self.key_bias

    @property
    def has_output_bias(self) -> bool:
        """Whether the output matrix has a bias: `output_bias`, or as the others."""
        return self.bias if self.output_bias is None else self.output_bias

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by: `scale`, or what keeps their deviation at 1."""
        products = self.positions.products if self.positions else 1
        return (products * self.head_dim) ** -0.5 if self.scale is None else self.scale

    @property
    def cross(self) -> Attention:
        """The cross-attention beside it: without relative positions and pattern."""
        return self.replace(pattern=None, positions=None)

    def check(self) -> None:
        """Raise SpecError for heads that do not fit each other, the pattern or the positions."""
        if self.num_heads % self.kv_heads:
            raise SpecError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.kv_heads}: "
                "every key-value head serves the same number of query heads."
            )
        num_patterns = 1 if self.pattern is None else len(self.pattern.of_heads)
        if num_patterns not in (1, self.num_heads):
            raise SpecError(
                f"num_heads={self.num_heads}, and the pattern is of {num_patterns} heads: give "
                "one pattern for every head."
            )
        if self.positions and (reason := self.positions.refuses(self.head_dim)):
            raise SpecError(f"head_dim={self.head_dim}: {reason}")
        if self.carries and self.positions and not self.positions.has_scores:
            raise SpecError(
                f'positions of kind "{self.positions.kind}" are in the keys of attention, which '
                f"{self.kind} makes anew of what it remembers: give it RelativeScores()."
            )

    @property
    def divided(self) -> dict[str, int]:
        """See `Mixer.divided`."""
        if self.qk_norm or (self.positions and not self.positions.divides):
            return {}
        if self.pattern and len(self.pattern.of_heads) > 1:
            return {}
        return {"num_heads": self.num_heads, "num_kv_heads": self.kv_heads}

    def flops(self, attended: float) -> float:
        """12 N H for every position that a query attends to, and what positions add."""
        heads = self.num_heads, self.head_dim
        own = self.positions.flops(attended, *heads) if self.positions else 0.0
        return 12.0 * attended * self.num_heads * self.head_dim + own

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Queries, keys, values and outputs; on a CPU probabilities, with dropout three times.

        A soft cap keeps scores and probabilities anywhere, and norms what they read. Positions may
        add more.
        """
        heads = self.num_heads * self.head_dim
        explicit = on_cpu or self.soft_cap is not None
        keys = heads if explicit else self.kv_heads * self.head_dim
        for_score = (3 if dropout else 1) + (self.soft_cap is not None) if explicit else 0
        scores = self.num_heads * length * for_score
        normed = heads + self.kv_heads * self.head_dim if self.qk_norm else 0
        own = 0
        if self.positions:
            own = self.positions.kept_numbers(length, self.num_heads, self.head_dim)
        return 2 * heads + 2 * keys + normed + scores + own
