"""The module of every kind of blocks, described in `spec/blocks`."""

from __future__ import annotations

from trivium.choice import import_members

import_members(__name__, __path__)
