"""Another pattern for every head."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny

from trivium.spec.patterns import Pattern


class PerHead(Pattern):
    """The pattern of head n is `patterns[n]`: as many as the attention has heads.

    Source: Child et al. 2019, section 4.2, equation 9: heads with different sets.
    """

    kind: Literal["per-head"] = "per-head"
    patterns: Annotated[tuple[SerializeAsAny[Pattern], ...], Field(min_length=1)]

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """See `Pattern.of_heads`."""
        return self.patterns
