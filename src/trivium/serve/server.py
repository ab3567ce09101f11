"""Running the app with uvicorn: address, start and orderly end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from trivium.errors import TriviumError
from trivium.serve.api_error import ApiError
from trivium.serve.security import Security

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ApiServer(uvicorn.Server):
    """uvicorn that preloads, reports when it listens and, when it stops, ends playground pages.

    Args:
        app: of `create_app`.
        ready: called when requests are accepted.
    """

    def __init__(self, app: Security, *, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                log_config=None,
                lifespan="on",
                ws="none",
                proxy_headers=False,  # `Security` reads them, of named proxies only.
                server_header=False,
                timeout_graceful_shutdown=max(1, round(app.registry.limits.grace)),
            )
        )
        self._app, self._ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load models where they are to be preloaded, then start to listen."""
        registry = self._app.registry
        for name in registry.names[: registry.limits.max_loaded] if registry.preload else ():
            await registry.ready(name)
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new, and let running requests finish."""
        self._app.registry.stopping.set()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second SIGINT does not wait for requests.

        uvicorn would raise the signal again at its end, which looks like a crash.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def run(app: Security, listening: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; running requests then have `Limits.grace` seconds.

    Raises TriviumError where a model cannot be preloaded.
    """
    try:
        ApiServer(app, ready=ready).run(sockets=[listening])
    except ApiError as error:
        raise TriviumError(error.detail) from None


def allowed_hosts(host: str, key: str | None) -> tuple[str, ...] | None:
    """The Host names that a server accepts: any, where clients must send a key.

    Raises TriviumError for a server without a key that other machines could reach.
    """
    if key is not None:
        return None
    if host.strip("[]").lower() not in _LOOPBACK:
        raise TriviumError(
            f"--host {host} opens the server to other machines, which needs an API key: give "
            "--api-key or set TRIVIUM_API_KEY. Without a key only --host 127.0.0.1 is allowed."
        )
    return _LOOPBACK


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises TriviumError where the address is not available.
    """
    host = host.strip("[]")
    ipv6 = ":" in host
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=ipv6)
    except OSError as error:
        raise TriviumError(
            f"{host} port {port} is not available: {error.strerror or error}. Choose another "
            "--port; --port 0 takes a free one."
        ) from None
    # asyncio sets TCP_NODELAY only where the protocol is named; else answers wait 40 ms for an ACK.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())


def address_of(listening: socket.socket) -> str:
    """`http://HOST:PORT` of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
