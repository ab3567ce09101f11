"""Waiting for an answer only as long as there is a client, and time; and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from trivium.serve.errors import CLIENT_GONE, ApiError, as_api_error

Answer = TypeVar("Answer")

# Seconds that the last pieces may take on their way to a slow client.
_SENDING = 10.0


async def answered(request: Request, work: Awaitable[Answer], *, seconds: float) -> Answer:
    """What `work` gives; it is cancelled where the client goes away or the time is up.

    Raises ApiError: 504 after `seconds`, 499 where nobody is there to read it.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ApiError(CLIENT_GONE, "the client went away.")
        raise too_late(seconds)
    finally:
        await _end(task, gone)


def too_late(seconds: float) -> ApiError:
    """That the time is up."""
    return ApiError(
        504,
        f"no whole answer within the {seconds:g} seconds that this server gives a request: ask "
        "for fewer tokens.",
        code="timeout",
    )


class EventStream(Response):
    """Server-sent events: each object a line `data: JSON`, at the end `data: [DONE]`.

    What fails after the first event is told as an event of its own, `{"error": ...}`.

    Args:
        events: what is sent.
        close: called at the end in any case, also where the client has gone away.
        seconds: for all of it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[dict[str, Any]],
        *,
        close: Callable[[], Awaitable[None]],
        seconds: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._close, self._seconds = events, close, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what comes until it ends or the client goes away."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait(
                {sending, gone},
                timeout=self._seconds + _SENDING,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if sending.done():
                sending.result()
        finally:
            await _end(sending, gone)
            await self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._lines()) as lines:
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _lines(self) -> AsyncGenerator[bytes]:
        end = asyncio.get_running_loop().time() + self._seconds
        while True:
            try:
                async with asyncio.timeout_at(end):
                    event = await anext(self._events)
            except StopAsyncIteration:
                break
            except TimeoutError:
                yield _line(too_late(self._seconds).body())
                break
            except Exception as error:  # The status was sent long ago.
                yield _line(as_api_error(error).body())
                break
            yield _line(event)
        yield b"data: [DONE]\n\n"


def _line(event: dict[str, Any]) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


async def _gone(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
