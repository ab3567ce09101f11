"""The HTTP server: OpenAI's API, endpoints for the other tasks, and a playground."""

from __future__ import annotations

from trivium.errors import MissingExtraError

try:
    from trivium.serve.app import create_app
except ImportError as error:
    if (error.name or "").split(".")[0] not in ("fastapi", "prometheus_client", "uvicorn"):
        raise
    raise MissingExtraError("the server", "serve") from None

__all__ = ["create_app"]
