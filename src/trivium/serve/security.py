"""What every request passes first: host, origin, API key, content type and size; then its log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import time
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.serve.api_error import CLIENT_CLOSED, ApiError
from trivium.serve.models import ModelRegistry

PUBLIC = "/healthz"
"""Needs no key: what watches the server has none."""
_OF_PAGES = ("/assets/", "/static/", "/gradio_api/", "/theme.css", "/favicon.ico", "/manifest.json")
"""What the pages of the playground load by themselves: logged only where it fails."""


class Security:
    """ASGI middleware around the whole app.

    Args:
        app: what answers.
        registry: the models of the app, its largest body, and its metrics by route and status.
        key: the API key, sent as `Authorization: Bearer KEY` or as the password of a browser's
            form; None: no key.
        hosts: names that requests may give as Host; None: any. Defends against DNS rebinding.
        stopping: set when the server stops.
        log: called with one line per request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        registry: ModelRegistry,
        key: str | None,
        hosts: Collection[str] | None,
        stopping: asyncio.Event,
        log: Callable[[str], None],
    ) -> None:
        self.registry = registry
        self._app, self._metrics, self._log = app, registry.metrics, log
        self._key = None if key is None else key.encode()
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._max_body, self.stopping = registry.limits.max_body, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, and log its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        start, status = time.perf_counter(), CLIENT_CLOSED

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message.get("body") and not message.get("more_body"):
                # Then an end of its own, before which uvicorn waits until the client has read.
                await send({**message, "more_body": True})
                message = {"type": "http.response.body"}
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_source(scope, headers)
            self._check_key(scope, headers)
            _check_content_type(scope, headers)
            receive = self._limited(headers, receive)
            await self._app(scope, receive, send_noting_status)
        except ApiError as error:
            await error.response()(scope, receive, send_noting_status)
        finally:
            self._note(scope, status, time.perf_counter() - start)

    def _check_source(self, scope: Scope, headers: Headers) -> None:
        """403 for another host's name, and for requests that pages of other sites make."""
        host = headers.get("host", "").lower()
        if self._hosts is not None and _hostname(host) not in self._hosts:
            raise ApiError(
                403,
                f"the server does not answer to the host {host[:100]!r}: without an API key only "
                f"to {', '.join(sorted(self._hosts))}. Start it with an API key to serve others.",
                code="wrong_host",
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        navigation = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if (origin is not None and origin.lower().partition("://")[2] != host) or (
            site not in ("same-origin", "none") and not navigation
        ):
            raise ApiError(
                403,
                "the request comes from a page of another site, which the server refuses: call "
                "it from a program, or from its own pages.",
                code="cross_site",
            )

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        if self._key is None or scope["path"] == PUBLIC:
            return
        key = _key_of(headers.get("authorization", ""))
        if hmac.compare_digest(key, self._key):
            return
        reason = "the API key is wrong" if key else "the API key is missing"
        scheme = "Bearer" if scope["path"].startswith("/v1/") else 'Basic realm="trivium"'
        raise ApiError(
            401,
            f"{reason}: send it as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": scheme},
        )

    def _limited(self, headers: Headers, receive: Receive) -> Receive:
        """A `receive` that raises 413 where the body turns out to be too large."""
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._max_body:
            raise self._too_large()
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise self._too_large()
            return message

        return receive_limited

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body has more than the {self._max_body} bytes that the server reads.",
            code="request_too_large",
        )

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        quiet = scope["path"] == PUBLIC or (status < 400 and scope["path"].startswith(_OF_PAGES))
        if not quiet:
            path = "".join(c if c.isprintable() else "?" for c in scope["path"][:100])
            line = f"{time.strftime('%H:%M:%S')} {scope['method']} {path} {status} {seconds:.2f} s"
            if usage := scope["state"].get("usage"):
                tokens = f"{usage.prompt_tokens}+{usage.completion_tokens} tokens"
                line += f" {scope['state']['model']} {tokens}"
            self._log(line)


def _check_content_type(scope: Scope, headers: Headers) -> None:
    """415 for what is not JSON: also forms, which pages of other sites may send unasked."""
    if scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
        return
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            415,
            f"the content type is {content_type[:100]!r}, but must be application/json: send JSON "
            "with the header 'Content-Type: application/json' (curl: -H 'Content-Type: "
            "application/json').",
            code="unsupported_media_type",
        )


def _hostname(host: str) -> str | None:
    """The name in a Host header, without its port."""
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{host}").hostname
    return None


def _key_of(authorization: str) -> bytes:
    """The key in an Authorization header; empty where there is none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""
