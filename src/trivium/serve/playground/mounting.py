"""Putting the playground into a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.language_model import LanguageModel
from trivium.serve.playground.models import LoadedModels, Models, Shown
from trivium.serve.playground.page import PATHS, STYLE, head, page, theme
from trivium.serve.playground.words import Words

# The browser itself keeps the page from asking anybody but this server.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'"
)
# What the page asks of Gradio. It takes no files and lends none: the rest is shut.
_API = "/gradio_api/"
_OPEN = ("queue/", "heartbeat/", "cancel", "reset", "startup-events", "theme.css", "info")


def mount(
    app: FastAPI,
    models: Mapping[str, Callable[[], LanguageModel]] | Models,
    *,
    runs: Path | None = None,
) -> FastAPI:
    """Put the playground at / (in Chinese at /zh) and return the app.

    To be called after the app has all its own routes: / takes what is left.

    Args:
        app: what it is mounted on.
        models: functions that load the models, by name, or what a server has to offer. Models are
            never used by two at once.
        runs: a folder of run folders, whose curves are shown; None: that tab says there is none.
    """
    offered = LoadedModels(models) if isinstance(models, Mapping) else models
    shown = Shown.of(offered)
    _in_a_loop(lambda: _mount_pages(app, shown, None if runs is None else Path(runs)))
    return app


def _mount_pages(app: FastAPI, shown: Shown, runs: Path | None) -> None:
    for language, path in PATHS.items():
        words = Words(language)
        gr.mount_gradio_app(
            app,
            page(shown, words, runs_folder=runs),
            path,
            footer_links=[],
            run_history=False,
            app_kwargs={"middleware": [Middleware(_Guarded)]},
            show_error=False,
            ssr_mode=False,
            enable_monitoring=False,
            pwa=False,
            mcp_server=False,
            theme=theme(),
            css_paths=STYLE,
            head=head(words),
        )


def _in_a_loop(build: Callable[[], None]) -> None:
    """Call a function while an event loop runs.

    Without one Gradio makes a loop for each of its locks, and closes none of them.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(_called(build))
        finally:
            loop.close()
    else:
        build()


async def _called(build: Callable[[], None]) -> None:
    build()


class _Guarded:
    """Shuts what the page does not need, and adds the policy to every answer.

    By it nothing is fetched from elsewhere, and nothing is sent there.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        _, within, asked = scope["path"].partition(_API)
        if within and not asked.startswith(_OPEN):
            await PlainTextResponse("not here", status_code=404)(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"content-security-policy", _POLICY.encode()),
                    (b"referrer-policy", b"no-referrer"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        await self.app(scope, receive, guarded)
