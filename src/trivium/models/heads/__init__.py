"""The module of every kind of head, described in `spec/heads`."""

from __future__ import annotations

from trivium.choice import import_members

import_members(__name__, __path__)
