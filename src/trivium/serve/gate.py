"""What every request passes first: host, key, size; and what is noted about it at its end."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import time
from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.serve.errors import CLIENT_GONE, ApiError
from trivium.serve.metrics import Metrics
from trivium.serve.models import Models

OPEN = ("/healthz",)
"""What needs no key: whoever watches the server has none."""
API = ("/v1/", "/metrics", "/healthz", "/docs", "/openapi.json")
# Seconds in which a body must have come.
_BODY_SECONDS = 30.0


class Gate:
    """ASGI middleware around the whole app.

    Args:
        app: what answers.
        models: those of the app.
        key: what a client must know; None: nothing. Given as `Authorization: Bearer KEY`, or as the
            password of a browser's own form.
        hosts: names that the server may be called by; None: any. A page of another site that makes
            its name stand for this machine is turned away by it.
        max_body: bytes.
        metrics: counts answers by route and status.
        say: takes one line about every request; None: nobody wants to know.
    """

    def __init__(
        self,
        app: ASGIApp,
        models: Models,
        *,
        key: str | None,
        hosts: Collection[str] | None,
        max_body: int,
        metrics: Metrics,
        say: Callable[[str], None] | None,
    ) -> None:
        self._app, self._metrics, self._say = app, metrics, say
        self.models = models
        self._key = None if key is None else key.encode()
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._max_body = max_body
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End what never ends by itself, such as the open page of a playground."""
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] == "websocket":  # There are none, and what is refused needs no key.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        start, status = time.perf_counter(), CLIENT_GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._let_in(scope, receive, noted)
        finally:
            self._note(scope, status, time.perf_counter() - start)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
            receive = await self._with_body(scope, receive)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        if scope["path"].startswith(API):
            await self._app(scope, receive, send)
        else:
            await self._until_stopped(scope, receive, send)

    async def _until_stopped(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._app(scope, receive, send))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for each in (work, stop):
                each.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    def _check(self, scope: Scope) -> None:
        """Raises ApiError where the request has no business here."""
        headers = dict(scope["headers"])
        host = _host(headers.get(b"host", b"").decode("latin-1"))
        if self._hosts is not None and host not in self._hosts:
            raise ApiError(
                403,
                f"this server is not called {host[:100]!r}: without a key it answers only to "
                f"{', '.join(sorted(self._hosts))}. Start it with an API key to serve others.",
                code="wrong_host",
            )
        if self._key is None or scope["path"] in OPEN:
            return
        given = _given_key(headers.get(b"authorization", b""))
        if not hmac.compare_digest(given, self._key):
            missing = "no API key was given" if not given else "the API key is wrong"
            scheme = "Bearer" if scope["path"].startswith("/v1/") else 'Basic realm="trivium"'
            raise ApiError(
                401,
                f"{missing}: send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": scheme},
            )

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """The whole body, read no further than allowed, as something to receive it from again."""
        if scope["method"] in ("GET", "HEAD"):
            return receive
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or int(told) > self._max_body:
            raise self._too_large()
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(CLIENT_GONE, "the client went away.")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_body:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(
                408, f"the body did not come within {_BODY_SECONDS:.0f} seconds."
            ) from None
        body: Message | None = {
            "type": "http.request",
            "body": b"".join(parts),
            "more_body": False,
        }

        async def again() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message, body = body, None
            return message

        return again

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than the {self._max_body} bytes that this server reads.",
            code="request_too_large",
        )

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if self._say is not None and route not in OPEN:
            about = scope["state"].get("about", "")
            clock = time.strftime("%H:%M:%S")
            path = "".join(c if c.isprintable() else "?" for c in scope["path"][:100])
            line = f"{clock} {scope['method']} {path} {status} {seconds:.2f} s {about}"
            self._say(line.rstrip())


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    name = header.lower()
    return name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]


def _given_key(header: bytes) -> bytes:
    """The key in an Authorization header, empty where there is none."""
    scheme, _, value = header.partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""
