"""The HTTP server: OpenAI's API, endpoints for the other tasks, and a playground."""

from __future__ import annotations

from trivium.errors import MissingExtraError

try:
    from trivium.serve.app import create_app
    from trivium.serve.limits import Limits
    from trivium.serve.models import named_paths
    from trivium.serve.server import address_of, allowed_hosts, listen, run
except ImportError as error:
    if (error.name or "").split(".")[0] not in ("fastapi", "prometheus_client", "uvicorn"):
        raise
    raise MissingExtraError("the server", "serve") from None

__all__ = [
    "Limits",
    "address_of",
    "allowed_hosts",
    "create_app",
    "listen",
    "named_paths",
    "run",
]
