"""Sliding windows."""

from __future__ import annotations

from typing import Any, Literal

from trivium.spec.part import Count
from trivium.spec.patterns import Pattern


class Sliding(Pattern):
    """A position attends to itself and to `window` positions on each allowed side of it."""

    kind: Literal["sliding"] = "sliding"
    window: Count

    @property
    def reach(self) -> int:
        """The window."""
        return self.window

    def allows(self, query: Any, key: Any) -> Any:
        """|query - key| <= window."""
        return abs(query - key) <= self.window
