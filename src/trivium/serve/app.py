"""The FastAPI app: routes for all endpoints, error handlers, documentation and the playground."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Match

from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.serve.api_error import ApiError, add_error_handlers
from trivium.serve.endpoints import ENDPOINTS, Endpoint
from trivium.serve.generation import find_prompt_limit
from trivium.serve.limits import Limits
from trivium.serve.models import ModelRegistry, ServedModel
from trivium.serve.replies import EventStream, run_until
from trivium.serve.schemas import ErrorBody, ModelRequest
from trivium.serve.security import Security

_DOCS_PAGE = Path(__file__).with_name("docs.html")
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request is invalid or exceeds a limit.", "model": ErrorBody},
    "5XX": {"description": "The server failed or did not answer in time.", "model": ErrorBody},
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


def create_app(
    models: Mapping[str, str | LanguageModel],
    *,
    adapters: Mapping[str, tuple[str, str]] | None = None,
    limits: Limits | None = None,
    key: str | None = None,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    proxies: str = "",
    root_path: str = "",
    load: Callable[[str], LanguageModel] = load,
    preload: bool = False,
    playground: bool = True,
    runs: Path | None = None,
) -> Security:
    """Create the ASGI app that serves models.

    Args:
        models: model id -> model folder or loaded model.
        adapters: adapter id -> (id of its base in `models`, folder of the adapter in PEFT's
            format). The base and its adapters share their weights.
        limits: the limits of the server; None uses `Limits()`.
        key: the API key that clients must send; None if no key is needed.
        hosts: the allowed values of the Host header, in addition to the hosts of `origins`. None
            allows any host.
        origins: the origins whose pages may call the server (CORS), as `https://HOST[:PORT]`.
        proxies: addresses and networks of trusted proxies, separated by commas.
        root_path: the path under which a proxy serves the app.
        load: loads a model from a folder.
        preload: whether `run_server` loads all models before it accepts requests. If False, each
            model is loaded at its first request.
        playground: whether to show the playground at `/` if Gradio is installed.
        runs: a folder of training runs. The playground shows their loss curves.
    """
    registry = ModelRegistry(models, adapters=adapters, load=load, preload=preload, limits=limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        """Stop the threads of all models when the app shuts down."""
        yield
        await asyncio.to_thread(registry.close)

    app = FastAPI(
        lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    add_error_handlers(app)
    for endpoint in ENDPOINTS.values():
        _add_endpoint_route(app, endpoint, registry)
    _add_status_routes(app, registry)
    _add_docs_routes(app, registry, has_key=key is not None)
    if playground and importlib.util.find_spec("gradio") is not None:
        from trivium.serve.playground import mount_playground

        mount_playground(app, registry, runs=runs, root_path=root_path)
    else:
        app.add_api_route("/", _send_docs_page, include_in_schema=False)
    return Security(
        app,
        registry=registry,
        key=key,
        hosts=hosts,
        origins=origins,
        proxies=proxies,
        root_path=root_path,
    )


def _add_endpoint_route(app: FastAPI, endpoint: Endpoint, registry: ModelRegistry) -> None:
    """Add the POST route of an endpoint to the app."""
    timeout = registry.limits.timeout

    async def handle_request(request: Request, body: ModelRequest) -> Response:
        deadline = asyncio.get_running_loop().time() + timeout

        async def make_response() -> Response:
            """Get the reply of the endpoint and convert it to an HTTP response."""
            request.state.model = registry.get_model(body.model).name
            reply = await endpoint.respond(registry, body)
            request.state.usage = reply.usage
            if isinstance(reply.content, dict):
                return JSONResponse(reply.content)
            # An error before the first event can still set the status code of the response.
            first_event = await anext(reply.content)
            return EventStream(first_event, reply.content, deadline)

        return await run_until(make_response(), _wait_for_disconnect(request), timeout=timeout)

    handle_request.__annotations__["body"] = endpoint.schema
    streams = "stream" in endpoint.schema.model_fields
    app.add_api_route(
        endpoint.path,
        handle_request,
        methods=["POST"],
        name=endpoint.path,
        summary=endpoint.summary,
        responses=_RESPONSES | _STREAM if streams else _RESPONSES,
    )


async def _wait_for_disconnect(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_status_routes(app: FastAPI, registry: ModelRegistry) -> None:
    """Add the routes that list the models and report the health and metrics of the server."""

    @app.get("/v1/models", summary="List the models")
    async def list_models() -> JSONResponse:
        data = [await _make_model_card(model) for model in registry]
        return JSONResponse({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}", summary="Describe a model")
    async def describe_model(name: str) -> JSONResponse:
        return JSONResponse(await _make_model_card(registry.get_model(name)))

    @app.post(
        "/v1/models/{name:path}/reload",
        summary="Load a model again from its folder, without interrupting requests",
        responses=_RESPONSES,
    )
    async def reload_model(name: str) -> JSONResponse:
        return JSONResponse(await _make_model_card(await registry.reload(name)))

    @app.get("/healthz", summary="Report whether all loaded models work")
    async def health() -> JSONResponse:
        loaded = [model for model in registry if model.is_loaded]
        failed = [model.name for model in loaded if not model.thread.is_alive]
        body = {
            "status": "failed" if failed else "ok",
            "models": registry.names,
            "loaded": [model.name for model in loaded],
            "failed": failed,
        }
        return JSONResponse(body, 503 if failed else 200)

    @app.get("/metrics", summary="Return metrics for Prometheus")
    async def measure() -> Response:
        return Response(registry.metrics.format_text(), media_type=CONTENT_TYPE_LATEST)


async def _make_model_card(model: ServedModel) -> dict[str, Any]:
    """Describe a model in the format of OpenAI's API, with extra fields such as its endpoints.

    The extra fields are null if the model folder is corrupt.
    """
    lm = await asyncio.to_thread(model.load_outline)
    able = None if lm is None else [each.path for each in ENDPOINTS.values() if each.accepts(lm)]
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "trivium",
        "parent": None if model.parent is None else model.parent.name,
        "loaded": model.is_loaded,
        "endpoints": able,
        "task": None if lm is None else lm.settings.task,
        "max_length": None if lm is None else lm.max_length,
        "max_prompt": None if lm is None else find_prompt_limit(lm, model.limits)[0],
    }


def _add_docs_routes(app: FastAPI, registry: ModelRegistry, *, has_key: bool) -> None:
    """Add the documentation pages, and the routes that return an error for unknown paths.

    If `has_key` is true, clients must send an API key, and the OpenAPI document says so.
    """
    app.add_api_route("/docs", _send_docs_page, include_in_schema=False)

    @app.get("/openapi.json", include_in_schema=False)
    async def send_openapi(request: Request) -> JSONResponse:
        """Send the OpenAPI document with the URL of this server."""
        document = await _make_openapi(app, registry, has_key=has_key)
        return JSONResponse(document | {"servers": [{"url": request.scope["root_path"] or "/"}]})

    @app.api_route("/v1/{rest:path}", methods=_METHODS, include_in_schema=False)
    async def refuse_unknown_path(request: Request, rest: str) -> Response:
        """Reject an unknown path or method with an error in the format of OpenAI's API."""
        matching = [each for each in app.routes if each.matches(request.scope)[0] is Match.PARTIAL]
        allowed = sorted(method for route in matching for method in getattr(route, "methods", ()))
        if allowed:
            message = (
                f"{request.url.path} does not allow {request.method}, only {', '.join(allowed)}."
            )
            raise ApiError(405, message, headers={"Allow": ", ".join(allowed)})
        raise ApiError(404, f"there is no endpoint /v1/{rest[:100]}; /docs lists them all.")

    async def refuse_without_v1(request: Request) -> Response:
        """Reject an API path that lacks the prefix /v1.

        The error message contains the correct path.
        """
        path = request.scope["route"].path
        url = f"{request.base_url}v1"
        raise ApiError(404, f"there is no {path}, but /v1{path}: a client's base URL is {url}.")

    # These routes come before Gradio's, whose errors have another format.
    for path in (*ENDPOINTS, "/v1/models"):
        app.add_api_route(
            path.removeprefix("/v1"), refuse_without_v1, methods=_METHODS, include_in_schema=False
        )


async def _send_docs_page() -> FileResponse:
    """Send the HTML page of the API documentation."""
    return FileResponse(_DOCS_PAGE, media_type="text/html")


async def _make_openapi(app: FastAPI, registry: ModelRegistry, *, has_key: bool) -> dict[str, Any]:
    """Build the OpenAPI document. Each example uses a served model that supports the endpoint."""
    document = get_openapi(
        title="Trivium",
        version=version("trivium"),
        description="Language models served with OpenAI's API, and endpoints for other tasks.",
        routes=app.routes,
    )
    for schema in document["components"]["schemas"].values():
        if name := schema.get("properties", {}).get("model"):
            name["enum"] = registry.names
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    outlines = {model.name: await asyncio.to_thread(model.load_outline) for model in registry}
    for path, endpoint in ENDPOINTS.items():
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        if able := [name for name, lm in outlines.items() if lm and endpoint.accepts(lm)]:
            body["examples"] = {path: {"value": {"model": able[0], **endpoint.example}}}
    return document
