"""Kinds of patterns: which keys a query may attend to, beside causality, padding and documents."""

from __future__ import annotations

from typing import Any

from trivium.spec.part import Choice, import_members


class Pattern(Choice):
    """A formula of two positions; the same for integers, and for tensors that broadcast."""

    @property
    def reach(self) -> int | None:
        """The farthest distance that is allowed; None: any."""
        return None

    def allows(self, query: Any, key: Any) -> Any:
        """Whether a query may attend to a key, by their positions in the text."""
        raise NotImplementedError


import_members(__name__, __path__)
