"""What endpoint functions return, and how it is sent: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from trivium.serve.api_error import CLIENT_CLOSED, ApiError, as_api_error

Answer = TypeVar("Answer")


@dataclass
class Usage:
    """Tokens read and generated; a prompt counts once, whatever `n`. Streams update it."""

    prompt_tokens: int
    completion_tokens: int = 0

    def body(self) -> dict[str, int]:
        """As OpenAI's API spells it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass
class Reply:
    """The answer of an endpoint: a JSON object, or a stream of them."""

    content: dict[str, Any] | AsyncGenerator[dict[str, Any]]
    usage: Usage

    def response(self, deadline: float) -> Response:
        """The HTTP response; a stream ends at the deadline, a time of the event loop."""
        if isinstance(self.content, dict):
            return JSONResponse(self.content)
        return _EventStream(_lines(self.content, deadline))


async def until_disconnected(
    request: Request, work: Awaitable[Answer], *, deadline: float
) -> Answer:
    """The result of work, which is cancelled where the client leaves or the time is over.

    Raises ApiError: 499 for a client that left, 504 after the deadline.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(request))
    try:
        async with asyncio.timeout_at(deadline):
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(CLIENT_CLOSED, "the client closed the connection.")
    except TimeoutError as error:
        raise as_api_error(error) from None
    finally:
        task.cancel()
        left.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """Closes its generator also where the client left while a chunk was being sent."""

    def __init__(self, lines: AsyncGenerator[bytes]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._lines = lines

    async def stream_response(self, send: Send) -> None:
        async with contextlib.aclosing(self._lines):
            await super().stream_response(send)


async def _lines(events: AsyncGenerator[dict[str, Any]], deadline: float) -> AsyncGenerator[bytes]:
    """`data: JSON` per event, then `data: [DONE]`; an error is an event, its status long sent."""
    async with contextlib.aclosing(events):
        try:
            while True:
                async with asyncio.timeout_at(deadline):
                    event = await anext(events)
                yield _line(event)
        except StopAsyncIteration:
            pass
        except Exception as error:
            yield _line(as_api_error(error).body())
        yield b"data: [DONE]\n\n"


def _line(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


async def peek(events: AsyncGenerator[Answer]) -> AsyncGenerator[Answer]:
    """The same events after the first has arrived, so that its error can still be a status."""
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    return _chain(first, events)


async def _chain(first: Answer, rest: AsyncGenerator[Answer]) -> AsyncGenerator[Answer]:
    async with contextlib.aclosing(rest):
        yield first
        async for each in rest:
            yield each
