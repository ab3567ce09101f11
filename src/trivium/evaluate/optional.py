"""The libraries that the field's metrics are computed with are not part of the core install."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trivium.errors import MissingExtraError


@contextlib.contextmanager
def optional_part(what: str) -> Iterator[None]:
    """Around the import of a metric's library: `what` begins the message where it is missing.

    Raises:
        MissingExtraError: the import failed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, "metrics") from error
