"""What endpoint functions return, and how it is sent: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Send

from trivium.serve.api_error import CLIENT_CLOSED, ApiError, as_api_error

Result = TypeVar("Result")
Json = dict[str, Any]


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

    content: Json | AsyncGenerator[Json]
    usage: Usage


async def finish_unless(
    work: Awaitable[Result], stop: Awaitable[Any], *, timeout: float | None = None
) -> Result:
    """The result of work, which is cancelled where `stop` ends first or the time is over.

    Raises ApiError: 499 where `stop` ended first, 504 after the time.
    """
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait({task, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if stopped.done():
            raise ApiError(CLIENT_CLOSED, "the connection was closed.")
        raise as_api_error(TimeoutError())
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


class EventStream(StreamingResponse):
    """Server-sent events: `data: JSON` per event, then `data: [DONE]`.

    An error after the first event is the last event: the status has long been sent.

    Args:
        first: the first event.
        events: the others; closed at the end, also where the client leaves.
        deadline: the time of the event loop at which the stream ends with an error.
    """

    def __init__(self, first: Json, events: AsyncGenerator[Json], deadline: float) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._events, self._lines = events, _lines(first, events, deadline)
        super().__init__(self._lines, media_type="text/event-stream", headers=headers)

    async def stream_response(self, send: Send) -> None:
        """Send all events; Starlette itself leaves the generators of a closed connection open."""
        async with contextlib.aclosing(self._events), contextlib.aclosing(self._lines):
            await super().stream_response(send)


async def _lines(
    first: Json, events: AsyncGenerator[Json], deadline: float
) -> AsyncGenerator[bytes]:
    event = first
    try:
        while event is not None:
            yield _line(event)
            async with asyncio.timeout_at(deadline):
                event = await anext(events, None)
    except Exception as error:
        yield _line(as_api_error(error).body())
    else:
        yield b"data: [DONE]\n\n"


def _line(event: Json) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
