"""Kinds that a test defines, and that no other test may meet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trivium.nn import part_module
from trivium.spec import Choice


@contextlib.contextmanager
def own_kinds() -> Iterator[None]:
    """Parts and modules that are defined inside are forgotten."""
    registries = [part_module._CLASSES, *(choice.kinds for choice in Choice.__subclasses__())]
    before = [dict(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, members in zip(registries, before, strict=True):
            registry.clear()
            registry.update(members)
