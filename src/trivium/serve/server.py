"""The uvicorn server that runs the app: its socket, its startup and its graceful shutdown."""

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
    """A uvicorn server that can preload models and that ends open playground pages on shutdown.

    Args:
        app: the result of `create_app`.
        ready: called once the server accepts requests.
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
                proxy_headers=False,  # `Security` reads them, only from trusted proxies
                server_header=False,
                timeout_graceful_shutdown=max(1, round(app.registry.limits.grace)),
            )
        )
        self._app, self._ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Preload the models if this is configured, then start to accept requests."""
        registry = self._app.registry
        for name in registry.names[: registry.limits.max_loaded] if registry.preload else ():
            await registry.get_loaded(name)
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Reject new requests and wait until the running requests have finished."""
        self._app.registry.stopping.set()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server gracefully. A second SIGINT stops it without waiting for requests.

        This replaces uvicorn's handler. Uvicorn's handler raises the signal again at the end, which
        would look like a crash.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def run_server(app: Security, sock: socket.socket, *, ready: Callable[[], None]) -> None:
    """Run the server until SIGINT or SIGTERM.

    Running requests then have `Limits.grace` seconds to finish.

    `ready` is called once the server accepts requests.

    Raises TriviumError if a model cannot be preloaded.
    """
    try:
        ApiServer(app, ready=ready).run(sockets=[sock])
    except ApiError as error:
        raise TriviumError(error.detail) from None


def get_allowed_hosts(host: str, api_key: str | None) -> tuple[str, ...] | None:
    """Return the allowed values of the Host header for a server that listens on the address `host`.

    If clients must send an API key, any value is allowed, and None is returned.

    Raises TriviumError if there is no API key and other machines could reach the server.
    """
    if api_key is not None:
        return None
    if host.strip("[]").lower() not in _LOOPBACK:
        raise TriviumError(
            f"--host {host} lets other machines reach the server, which needs an API key: give "
            "--api-key or set TRIVIUM_API_KEY. Without a key only --host 127.0.0.1 is allowed."
        )
    return _LOOPBACK


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens on an address. For port 0, the system chooses a free port.

    Raises TriviumError if the address is not available.
    """
    host = host.strip("[]")
    ipv6 = ":" in host
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=ipv6)
    except OSError as error:
        raise TriviumError(
            f"{host} port {port} is not available: {error.strerror or error}. Choose another "
            "--port; --port 0 uses a free one."
        ) from None
    # asyncio sets TCP_NODELAY only if the socket's protocol is explicitly TCP. Without TCP_NODELAY,
    # responses are delayed by 40 ms because they wait for an ACK.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())


def format_address(sock: socket.socket) -> str:
    """Return the URL of a listening socket: `http://HOST:PORT`."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
