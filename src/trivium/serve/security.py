"""Security checks and logging for every request, before the request reaches the app.

The checks cover the Host header, the origin, the API key, the content type and the body size.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from trivium.errors import TriviumError
from trivium.serve.api_error import CLIENT_CLOSED, ApiError
from trivium.serve.models import ModelRegistry

PUBLIC = "/healthz"
"""The only path that needs no API key. Monitoring tools request it without a key."""
_ASSETS = ("/assets/", "/static/", "/gradio_api/", "/theme.css", "/favicon.ico", "/manifest.json")
"""Paths that the pages of the playground load automatically. Successful requests are not logged."""
HEADERS = {
    # With this policy, the browser does not let the server's pages contact any other server.
    "content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The headers of every response."""
_ORIGIN = re.compile(r"https?://([\w.-]+|\[[\da-f:.]+\])(:[1-9]\d{0,4})?", re.ASCII)
_REQUEST_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)

_LOG = logging.getLogger(__name__)


class Security:
    """ASGI middleware around the whole app that checks and logs every request.

    Args:
        app: the app that answers the requests.
        registry: the served models, with the maximum size of a request body and the metrics.
        key: the API key. Clients send it as `Authorization: Bearer KEY`, or as the password in the
            login form of a browser. None if no key is needed.
        hosts: the allowed values of the Host header, as a defence against DNS rebinding. None
            allows any host.
        origins: the origins whose pages may call the server, as `https://HOST[:PORT]`. These are
            other sites (CORS), and the server's own origin if it is behind a proxy.
        proxies: addresses and networks of trusted proxies, separated by commas. The headers
            X-Forwarded-For, X-Forwarded-Proto and (if any Host is allowed) X-Forwarded-Host are
            read only in requests from these proxies, and removed from all other requests.
        root_path: the path under which a proxy serves the app. The proxy may remove this path from
            its requests or keep it.

    Raises TriviumError for an invalid origin or address.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        registry: ModelRegistry,
        key: str | None,
        hosts: Collection[str] | None,
        origins: Collection[str],
        proxies: str,
        root_path: str,
    ) -> None:
        self.registry = registry
        self._app, self._metrics = app, registry.metrics
        self._key = None if key is None else key.encode()
        self._origins = frozenset(map(check_origin, origins))
        own_hosts = {urlsplit(origin).hostname for origin in self._origins}
        self._hosts = None if hosts is None else {*hosts, *own_hosts}
        self._root_path, self._max_body = root_path, registry.limits.max_body
        self._with_cors = CORSMiddleware(
            self._check_and_serve,
            allow_origins=list(self._origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )
        logged: Any = self._serve_and_log  # uvicorn has its own types for ASGI
        self._behind_proxy: Any = ProxyHeadersMiddleware(
            logged, trusted_hosts=check_proxies(proxies)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, or reject a websocket connection.

        Forwarding headers are applied if they come from a trusted proxy; otherwise they are
        removed.
        """
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers, client = MutableHeaders(scope=scope), scope.get("client") or ("", 0)
            if client[0] not in self._behind_proxy.trusted_hosts:
                for name in headers:
                    if name.startswith("x-forwarded-"):
                        del headers[name]
            elif self._hosts is None and (host := headers.get("x-forwarded-host")):
                headers["host"] = host.partition(",")[0].strip()
            await self._behind_proxy(scope, receive, send)

    async def _serve_and_log(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and log a request.

        Security headers and the request ID are added to the response.
        """
        path: str = scope["path"]
        if not f"{path}/".startswith(f"{self._root_path}/"):
            scope["path"] = self._root_path + path
        scope["root_path"] = self._root_path
        sent_id = Headers(scope=scope).get("x-request-id", "")
        request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else uuid.uuid4().hex
        scope.setdefault("state", {})
        start, status = time.perf_counter(), CLIENT_CLOSED

        async def send_with_headers(message: Message) -> None:
            """Send a message of the response. Adds security headers and the request ID."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update({"x-request-id": request_id, **HEADERS})
            elif message.get("body") and not message.get("more_body"):
                # The end of the body gets a message of its own: before it is sent, uvicorn waits
                # until the client has read the rest.
                await send({**message, "more_body": True})
                message = {"type": "http.response.body"}
            await send(message)

        try:
            await self._with_cors(scope, receive, send_with_headers)
        finally:
            self._record_request(scope, request_id, status, time.perf_counter() - start)

    async def _check_and_serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app if it passes all checks. Otherwise send an error."""
        try:
            headers = Headers(scope=scope)
            self._check_source(scope, headers)
            self._check_key(scope, headers)
            if scope["method"] == "POST" and self._get_relative_path(scope).startswith("/v1/"):
                _check_content_type(headers)
            await self._app(scope, self._limit_body(headers, receive), send)
        except ApiError as error:
            await error.to_response()(scope, receive, send)

    def _get_relative_path(self, scope: Scope) -> str:
        """Return the path of a request without the prefix `root_path`."""
        return scope["path"].removeprefix(self._root_path)

    def _check_source(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError (403) for a wrong Host header or a request from a page of another site.

        Browsers send a Fetch Metadata header that says whether the page has the same origin. Pages
        cannot set this header. Older browsers do not send it, nor do browsers over plain HTTP. In
        this case, the Origin header is compared with the Host header.
        """
        host = headers.get("host", "").lower()
        if self._hosts is not None and _parse_hostname(host) not in self._hosts:
            raise ApiError(
                403,
                f"the server does not answer to the host {host[:100]!r}: without an API key only "
                f"to {', '.join(sorted(self._hosts))}. Start it with an API key to serve others, "
                "or with --allow-origin and the origin of its pages behind a proxy.",
                code="wrong_host",
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin.lower() in self._origins:
            return
        if site is None:
            own = origin is None or origin.lower().partition("://")[2] == host
        else:
            navigation = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
            own = site in ("same-origin", "none") or navigation
        if not own:
            page = (origin or site or "")[:100]
            raise ApiError(
                403,
                f"the request comes from a page of another site ({page}), which the server "
                "refuses: call it from a program or from its own pages, or start it with "
                "--allow-origin and the origin of that site.",
                code="cross_site",
            )

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError (401) if the API key of a request is missing or wrong."""
        path = self._get_relative_path(scope)
        if self._key is None or path == PUBLIC:
            return
        key = _parse_key(headers.get("authorization", ""))
        if hmac.compare_digest(key, self._key):
            return
        reason = "the API key is wrong" if key else "the API key is missing"
        scheme = "Bearer" if path.startswith("/v1/") else 'Basic realm="trivium"'
        raise ApiError(
            401,
            f"{reason}: send it as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": scheme},
        )

    def _limit_body(self, headers: Headers, receive: Receive) -> Receive:
        """Wrap `receive` with a check of the size limit, and return the wrapper.

        The wrapper raises ApiError (413) once the body exceeds the limit. If the Content-Length
        header already exceeds the limit, this method raises the error itself.
        """
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._max_body:
            raise self._make_too_large_error()
        size = 0

        async def receive_limited() -> Message:
            """Receive a message. Raises ApiError (413) if the body has exceeded the size limit."""
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise self._make_too_large_error()
            return message

        return receive_limited

    def _make_too_large_error(self) -> ApiError:
        """Return the error (413) for a request body that exceeds the size limit."""
        return ApiError(
            413,
            f"the body has more than the {self._max_body} bytes that the server reads.",
            code="request_too_large",
        )

    def _record_request(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        """Record a finished request in the metrics and in the log."""
        route = getattr(scope.get("route"), "path", None) or "other"
        model = scope["state"].get("model", "")
        self._metrics.requests.labels(route, model, str(status)).inc()
        self._metrics.request_seconds.labels(route, model).observe(seconds)
        own_path = self._get_relative_path(scope)
        if own_path == PUBLIC or (status < 400 and own_path.startswith(_ASSETS)):
            return
        usage = scope["state"].get("usage")
        fields = {
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": "".join(c if c.isprintable() else "?" for c in scope["path"][:100]),
            "status": status,
            "seconds": round(seconds, 4),
            "model": model,
            "prompt_tokens": usage.prompt_tokens if usage else 0,
            "completion_tokens": usage.completion_tokens if usage else 0,
            "request_id": request_id,
        }
        line = "%(client)s %(request_id)s %(method)s %(path)s %(status)d %(seconds).3f s"
        if usage:
            line += " %(model)s %(prompt_tokens)d+%(completion_tokens)d tokens"
        _LOG.info(line, fields, extra=fields)


def _check_content_type(headers: Headers) -> None:
    """Raise ApiError (415) if the content type of a request is not JSON.

    This also rejects HTML forms. Browsers let pages of other sites submit forms without permission.
    """
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            415,
            f"the content type is {content_type[:100]!r}, but must be application/json: send JSON "
            "with the header 'Content-Type: application/json' (curl: -H 'Content-Type: "
            "application/json').",
            code="unsupported_media_type",
        )


def check_origin(origin: str) -> str:
    """Validate an origin and return it in lower case.

    Raises TriviumError if the origin is not exactly `http://HOST` or `https://HOST`, with an
    optional port. `*` is rejected because it would allow every page.
    """
    if _ORIGIN.fullmatch(origin.lower()):
        return origin.lower()
    raise TriviumError(
        f"{origin!r} is not an origin: write https://HOST or https://HOST:PORT, as browsers do."
    )


def check_proxies(proxies: str) -> str:
    """Validate a comma-separated list of IP addresses and networks, and return it unchanged.

    Raises TriviumError for an entry that is neither an address nor a network.
    """
    for each in filter(None, proxies.split(",")):
        try:
            ipaddress.ip_network(each.strip())
        except ValueError as error:
            raise TriviumError(
                f"{error}: give proxies as addresses or networks such as 127.0.0.1,10.0.0.0/8."
            ) from None
    return proxies


def _parse_hostname(host: str) -> str | None:
    """Return the host name in a Host header, without the port. None if the header is malformed."""
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{host}").hostname
    return None


def _parse_key(authorization: str) -> bytes:
    """Return the API key in an Authorization header (Bearer or Basic), or b"" if there is none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""
