"""The app: routes, errors, pages and the playground, put together behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import compile_path

from trivium.language_model import LanguageModel, load
from trivium.serve.chat import chat
from trivium.serve.completions import completions
from trivium.serve.embeddings import embeddings
from trivium.serve.errors import ApiError, add_handlers
from trivium.serve.examples import openapi_with_examples
from trivium.serve.gate import Gate
from trivium.serve.limits import Limits
from trivium.serve.metrics import Metrics
from trivium.serve.models import Models, Served
from trivium.serve.pages import docs_page, front_page
from trivium.serve.roads import roads

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_NO_PLAYGROUND = (
    "There is a playground for this page: pip install 'trivium[playground]', and start the server "
    "again."
)


def create_app(
    paths: Mapping[str, str],
    *,
    limits: Limits | None = None,
    key: str | None = None,
    hosts: Collection[str] | None = None,
    load: Callable[[str], LanguageModel] = load,
    preload: bool = False,
    playground: bool = True,
    runs: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Gate:
    """An ASGI app that serves models.

    Args:
        paths: name -> folder of each model.
        limits: what is refused rather than tried.
        key: what every client must know; None: nothing.
        hosts: names that the server may be called by; None: any.
        load: makes a model of its folder.
        preload: load all of them at the start, rather than each when it is first asked for.
        playground: show it at `/`, where Gradio is installed.
        runs: a folder of runs, whose curves the playground shows.
        say: takes lines for the log; None: silence.
    """
    limits, metrics = limits or Limits(), Metrics()
    tell = say or _silent
    models = Models(paths, limits=limits, metrics=metrics, load=load, say=tell)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models.loop = asyncio.get_running_loop()
        if preload:
            for name in models.names:
                await models.ready(name)
        yield
        await asyncio.to_thread(models.close)

    app = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    add_handlers(app)
    for router in (completions, chat, embeddings, roads):
        app.include_router(router(models, limits))
    app.include_router(_about(models, metrics))
    _add_pages(app, models, keyed=key is not None)
    why = _mount_playground(app, models, runs) if playground else ""
    if why is not None:
        _add_front_page(app, models, why)
    return Gate(
        app, models, key=key, hosts=hosts, max_body=limits.max_body, metrics=metrics, say=say
    )


def _silent(line: str) -> None:
    """Nobody wants to know."""


def _about(models: Models, metrics: Metrics) -> APIRouter:
    """What is there, how it is, and how busy."""
    router = APIRouter()

    @router.get("/v1/models", tags=["OpenAI"], summary="The models that are served")
    async def list_models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [_described(each) for each in models]})

    @router.get("/v1/models/{name:path}", tags=["OpenAI"], summary="One of them")
    async def one_model(name: str) -> JSONResponse:
        return JSONResponse(_described(models.find(name)))

    @router.get("/healthz", tags=["Server"], summary="Whether the server is well")
    async def health() -> JSONResponse:
        loaded = [each.name for each in models if each.loaded]
        return JSONResponse({"status": "ok", "models": list(models.names), "loaded": loaded})

    @router.get("/metrics", tags=["Server"], summary="Counts and times, for Prometheus")
    async def measure() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def _described(served: Served) -> dict[str, Any]:
    verbs = served.verbs
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "trivium",
        "loaded": served.loaded,
        "verbs": None if verbs is None else list(verbs),
    }


def _add_pages(app: FastAPI, models: Models, *, keyed: bool) -> None:
    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> JSONResponse:
        return JSONResponse(openapi_with_examples(app, models, keyed=keyed))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(openapi_with_examples(app, models, keyed=keyed)))

    @app.api_route("/v1/{rest:path}", methods=_METHODS, include_in_schema=False)
    async def unknown(request: Request, rest: str) -> Response:
        """Without this, what stands at `/` would answer in a shape of its own."""
        allowed = _methods_of(app, request.url.path)
        if allowed:
            raise ApiError(
                405,
                f"{request.method} is not what this road takes, but {', '.join(allowed)}.",
                headers={"Allow": ", ".join(allowed)},
            )
        raise ApiError(404, f"there is no road /v1/{rest[:100]}; /docs shows those there are.")


def _methods_of(app: FastAPI, path: str) -> list[str]:
    """The methods that a path takes, where it is one of ours."""
    found: set[str] = set()
    for known, operations in app.openapi()["paths"].items():
        if compile_path(known.replace("{name}", "{name:path}"))[0].match(path):
            found |= {method.upper() for method in operations}
    return sorted(found)


def _mount_playground(app: FastAPI, models: Models, runs: Path | None) -> str | None:
    """Mount the playground; what to say where that is not possible, else None."""
    try:
        import gradio  # noqa: F401
    except ImportError:
        return _NO_PLAYGROUND
    from trivium.serve.borrowed import BorrowedModels
    from trivium.serve.playground import mount

    mount(app, BorrowedModels(models), runs=runs)
    return None


def _add_front_page(app: FastAPI, models: Models, why: str) -> None:
    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return HTMLResponse(front_page(models, playground=why or None))
