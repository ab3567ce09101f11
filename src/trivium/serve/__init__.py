"""The HTTP server: OpenAI's API, endpoints for other tasks, and a playground in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trivium.errors import MissingExtraError

if TYPE_CHECKING:
    from trivium.serve.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    """Import `create_app` on first access, because it needs torch and optional dependencies."""
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from trivium.serve.app import create_app
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("fastapi", "prometheus_client", "uvicorn"):
            raise
        raise MissingExtraError("the server", "serve") from None
    return create_app
