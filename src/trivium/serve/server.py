"""Running the app with uvicorn: address, start and orderly end."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from trivium.errors import TriviumError
from trivium.serve.api_error import ApiError
from trivium.serve.limits import Limits
from trivium.serve.security import Security

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ApiServer(uvicorn.Server):
    """uvicorn that preloads, reports when it listens and, when it stops, ends playground pages.

    Args:
        app: of `create_app`.
        limits: the grace period.
        ready: called when requests are accepted.
    """

    def __init__(self, app: Security, *, limits: Limits, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                log_config=None,
                lifespan="on",
                server_header=False,
                timeout_graceful_shutdown=max(1, round(limits.grace)),
            )
        )
        self._app, self._ready = app, ready
        self.failure: ApiError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load models where they are to be preloaded, then start to listen."""
        registry = self._app.registry
        try:
            for name in registry.names if registry.preload else ():
                await registry.ready(name)
        except ApiError as error:
            self.failure, self.should_exit = error, True
            return
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new, and let running requests finish."""
        self._app.stop()
        await super().shutdown(sockets)


def run(
    app: Security, listening: socket.socket, *, limits: Limits, ready: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; running requests then have `limits.grace` seconds.

    Raises TriviumError where a model cannot be preloaded.
    """
    server = ApiServer(app, limits=limits, ready=ready)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn raises the signal again after its end, for the handler that was there before: with
    # the default one an orderly end would look like a crash.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if server.failure is not None:
        raise TriviumError(str(server.failure))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, key: str | None) -> list[str] | None:
    """The Host names that a server accepts: any, where clients must send a key.

    Raises TriviumError for a server without a key that other machines could reach.
    """
    if key is not None:
        return None
    if not is_loopback(host):
        raise TriviumError(
            f"--host {host} opens the server to other machines, which needs an API key: give "
            "--api-key or set TRIVIUM_API_KEY. Without a key only --host 127.0.0.1 is allowed."
        )
    return sorted({*_LOOPBACK, host.strip("[]").lower()})


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises TriviumError where the address is not available.
    """
    try:
        ((family, kind, _, _, address), *_) = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.socket(family, kind)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(2048)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise TriviumError(
            f"{host} port {port} is not available: {error.strerror or error}. Choose another "
            "--port; --port 0 takes a free one."
        ) from None
    return listening


def address_of(listening: socket.socket) -> str:
    """`http://HOST:PORT` of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
