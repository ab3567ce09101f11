"""Running the app: where it listens, what it says, and how it ends."""

from __future__ import annotations

import ipaddress
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from trivium.errors import TriviumError
from trivium.serve.gate import Gate
from trivium.serve.limits import Limits

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# Connections that wait to be taken.
_BACKLOG = 2048


class Server(uvicorn.Server):
    """uvicorn that ends what never ends by itself, and says when it is ready.

    Args:
        ready: called when requests are taken.
    """

    def __init__(self, gate: Gate, *, limits: Limits, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            gate,
            access_log=False,
            log_level="warning",
            log_config=None,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=max(1, round(limits.grace)),
        )
        super().__init__(config)
        self._gate, self._ready = gate, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, and let what runs come to its end."""
        self._gate.stop()
        await super().shutdown(sockets)


def run(gate: Gate, listening: socket.socket, *, limits: Limits, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then finish what runs, for at most `limits.grace` seconds."""
    server = Server(gate, limits=limits, ready=ready)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn raises the signal again when it has ended, for whoever handled it before: that would
    # make an orderly end look like a crash.
    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listening])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


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
    """The names that a server may be called by: any, where clients must know a key.

    Raises TriviumError for a server without a key that other machines could reach.
    """
    if key is not None:
        return None
    if not is_loopback(host):
        raise TriviumError(
            f"--host {host} lets other machines in, so that clients must know a key: give "
            "--api-key, or set TRIVIUM_API_KEY. Without one only --host 127.0.0.1 is possible."
        )
    plain = host.strip("[]").lower()
    return sorted({*_LOOPBACK, f"[{plain}]" if ":" in plain else plain})


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 takes any that is free.

    Raises TriviumError where the address cannot be had.
    """
    plain = host.strip("[]")
    try:
        ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(
            plain, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(_BACKLOG)
        except OSError:
            found.close()
            raise
    except OSError as error:
        raise TriviumError(
            f"{host} port {port} cannot be had: {error.strerror or error}. Another --port may be "
            "free; --port 0 takes one that is."
        ) from None
    return found


def address_of(listening: socket.socket) -> str:
    """`http://HOST:PORT` of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def now() -> str:
    """The time for a line of the log."""
    return time.strftime("%H:%M:%S")
