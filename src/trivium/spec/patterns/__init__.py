"""Kinds of patterns: which keys a query may attend to, beside causality, padding and documents."""

from __future__ import annotations

from typing import Any

from trivium.choice import Choice, import_members
from trivium.spec.part import Part


class Pattern(Choice, Part):
    """A formula of two positions; the same for integers, and for tensors that broadcast."""

    @property
    def reach(self) -> int | None:
        """The farthest distance that is allowed; None: any. With one, `allows` gets columns."""
        return None

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """One for every head; or one alone, which is that of them all."""
        return (self,)

    def allows(self, query: Any, key: Any) -> Any:
        """Whether a query may attend to a key, by their positions in the text.

        Of a pattern with a `reach` by their columns in the row, whose distance is the same.
        """
        raise NotImplementedError


import_members(__name__, __path__)
