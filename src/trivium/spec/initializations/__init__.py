"""Kinds of starts: what the weights of a model are drawn from."""

from __future__ import annotations

from typing import Any

from trivium.choice import Choice, import_members
from trivium.spec.part import Part


class Initialization(Choice, Part):
    """How weights start; its function is in `models/initializations`."""

    attention: Any
    """How queries and keys start: as other matrices do, or see `trivium.models.initialization`."""


import_members(__name__, __path__)
