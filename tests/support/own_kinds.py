"""Kinds that a test defines, and that no other test may meet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trivium.workflows.training  # noqa: F401  all kinds there are, which stay
from trivium.choice import Choice


def choices(cls: type[Choice]) -> Iterator[type[Choice]]:
    """The choices that inherit from a class."""
    for each in cls.__subclasses__():
        if not each.is_member():
            yield each
            yield from choices(each)


@contextlib.contextmanager
def own_kinds() -> Iterator[None]:
    """Kinds that are defined inside are forgotten."""
    registries = [choice.kinds for choice in choices(Choice)]
    before = [dict(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, members in zip(registries, before, strict=True):
            registry.clear()
            registry.update(members)
