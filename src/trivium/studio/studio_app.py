"""The web server of the studio: its token, its page, reports, and playgrounds of finished runs."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from urllib.parse import parse_qs, unquote

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.errors import TriviumError
from trivium.files import write_file
from trivium.model_loading import load
from trivium.report import write_comparison, write_report
from trivium.serve.app import create_app
from trivium.serve.limits import Limits
from trivium.serve.playground import mount_page
from trivium.serve.security import HEADERS
from trivium.serve.server import format_address, listen
from trivium.studio.goals import check_run_name
from trivium.studio.processes import StudioFolder
from trivium.studio.studio_page import MAX_UPLOAD, STYLE, build_studio_page
from trivium.studio.studio_texts import TRANSLATIONS

HOST = "127.0.0.1"
_UPLOADS = ("upload", "upload_progress")  # paths of Gradio's API


class StudioApp:
    """The ASGI app of a studio. It answers only requests whose path begins with the token.

    A page of another site, or another user of the machine, does not know the token. Requests
    without the token get one and the same answer, which says nothing about the studio.

    Args:
        folder: the folder of the studio.
        token: the secret first part of all paths.
    """

    def __init__(self, folder: StudioFolder, token: str) -> None:
        self.stopping = asyncio.Event()
        self._folder, self._token = folder, token
        os.environ["GRADIO_TEMP_DIR"] = str(folder.uploads)  # where Gradio stores uploaded files
        self._page = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        mount_page(
            self._page,
            lambda: build_studio_page(folder),
            stopping=self.stopping,
            translations=TRANSLATIONS,
            root_path=f"/{token}",
            also_open=_UPLOADS,
            style=STYLE,
            max_file_size=MAX_UPLOAD,
        )
        self._playground: _Playground | None = None
        self._changing = asyncio.Lock()  # one request at a time opens a playground

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request that has the token, and reject everything else."""
        if scope["type"] == "lifespan":
            await self._page(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        started = ended = False

        async def send_with_headers(message: Message) -> None:
            """Send a message of the response. Adds security headers."""
            nonlocal started, ended
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            if message["type"] == "http.response.start":
                started = True
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        token, _, rest = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            answer: ASGIApp = PlainTextResponse(
                "Open the address that `trivium studio` printed.\n", status_code=403
            )
        elif scope["path"] == f"/{token}":
            answer = RedirectResponse(f"/{token}/")
        else:
            answer = await self._find_answer(rest, scope)
        await answer(scope, receive, send_with_headers)
        if not started:  # the studio stops while the page waits for an answer
            await PlainTextResponse("stopped\n", 503)(scope, receive, send_with_headers)
        elif not ended:
            await send({"type": "http.response.body"})

    async def _find_answer(self, path: str, scope: Scope) -> ASGIApp:
        """Return the app that answers a request. `path` is its path after the token."""
        kind, _, rest = path.partition("/")
        try:
            if kind == "report":
                run = self._folder.runs / check_run_name(unquote(rest))
                return await _send_page(partial(write_report, run))
            if kind == "compare":
                names = parse_qs(scope["query_string"].decode()).get("run", [])
                runs = [self._folder.runs / check_run_name(name) for name in names]
                out = self._folder.path / "comparison.html"
                return await _send_page(partial(write_comparison, runs, out))
            if kind == "try":
                return await self._open_playground(check_run_name(unquote(rest.partition("/")[0])))
        except TriviumError as error:
            return PlainTextResponse(f"{error}\n", status_code=404)
        scope["root_path"] = f"/{self._token}"
        return self._page

    async def _open_playground(self, name: str) -> ASGIApp:
        """Return the playground of a run. The playground of another run is closed first."""
        async with self._changing:
            if self._playground is None or self._playground.name != name:
                if not self._folder.read_state(name).has_model:
                    raise TriviumError(f"{name} has not finished: there is no model to try yet.")
                await self.close()
                root = f"/{self._token}/try/{name}"
                self._playground = await asyncio.to_thread(_Playground, self._folder, name, root)
                await self._playground.start()
        return self._playground.app

    async def close(self) -> None:
        """Close the playground, if one is open."""
        playground, self._playground = self._playground, None
        if playground is not None:
            await playground.close()


class _Playground:
    """The playground of one run: the app of `trivium serve`, with a lifespan of its own."""

    def __init__(self, folder: StudioFolder, name: str, root_path: str) -> None:
        self.name = name
        path = folder.runs / name
        self.app = create_app(
            {name: str(path)},
            limits=Limits(),
            key=None,
            hosts=(HOST, "localhost"),
            load=partial(load, pack=True),
            runs=None,
            root_path=root_path,
        )
        self._sent, self._received = asyncio.Queue[Message](), asyncio.Queue[Message]()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Run the startup of the app."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.create_task(self.app(scope, self._sent.get, self._received.put))
        await self._sent.put({"type": "lifespan.startup"})
        await self._received.get()

    async def close(self) -> None:
        """End the requests of the app and its model, and run its shutdown."""
        self.app.registry.stopping.set()
        await self._sent.put({"type": "lifespan.shutdown"})
        with contextlib.suppress(asyncio.CancelledError):
            if self._task is not None:
                await self._task


async def _send_page(write: Callable[[], Path]) -> Response:
    """Write an HTML page with a function that returns its path. Returns the response."""
    return FileResponse(await asyncio.to_thread(write), media_type="text/html")


class _Server(uvicorn.Server):
    """A uvicorn server that ends open pages when it stops, and leaves signals to its caller."""

    def __init__(self, app: StudioApp, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                lifespan="on",
                ws="none",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._app, self._ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the pages, which have streams without an end, and stop."""
        self._app.stopping.set()
        await self._app.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server. uvicorn's own handler would raise the signal again at the end."""
        self.should_exit = True


def run_studio(
    folder: StudioFolder, port: int, *, ready: Callable[[str], None], token: str | None = None
) -> None:
    """Run the server of a studio on 127.0.0.1 until SIGINT or SIGTERM.

    Args:
        folder: the folder of the studio.
        port: the port; 0 chooses a free one.
        ready: called with the address of the page once the server accepts requests.
        token: the secret part of the address; None chooses a random one.

    Raises:
        TriviumError: the port is in use, or another studio uses the folder.
    """
    token = token or secrets.token_urlsafe(24)
    with folder.opened(), listen(HOST, port) as listening:
        address = f"{format_address(listening)}/{token}/"
        app = StudioApp(folder, token)
        _Server(app, lambda: ready(address)).run(sockets=[listening])


def write_opener(folder: StudioFolder, address: str) -> Path:
    """Write a file that leads a browser to the page, and return its path.

    The browser is started with the path of this file, which only the user may read, because all
    users of the machine can see the arguments of a process.
    """
    file = folder.path / "open.html"
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    write_file(file, f'<meta http-equiv="refresh" content="0; url={address}">\n')
    file.chmod(0o600)
    return file
