"""Replies of endpoints. A reply is sent as one JSON object or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Send

from trivium.serve.api_error import CLIENT_CLOSED, ApiError, to_api_error

Result = TypeVar("Result")
Json = dict[str, Any]


@dataclass
class Usage:
    """The number of prompt tokens and the number of generated tokens of a request.

    The tokens of a prompt are counted once, even if several texts are generated for it. While a
    streamed reply is sent, its counts are updated.
    """

    prompt_tokens: int
    completion_tokens: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return the counts in the format of OpenAI's API."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass
class Reply:
    """The reply of an endpoint: its content, and its token counts for the log and the metrics.

    The content is one JSON object or a stream of JSON objects.
    """

    content: Json | AsyncGenerator[Json]
    usage: Usage


async def run_until(
    work: Awaitable[Result], stop: Awaitable[Any], *, timeout: float | None = None
) -> Result:
    """Await `work` and return its result.

    Cancels `work` if `stop` finishes first, or at the timeout.

    Raises ApiError: 499 if `stop` finishes first, 504 after `timeout` seconds.
    """
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait({task, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if stopped.done():
            raise ApiError(CLIENT_CLOSED, "the connection was closed.")
        raise to_api_error(TimeoutError())
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


class EventStream(StreamingResponse):
    """A response of server-sent events: `data: JSON` for each event, then `data: [DONE]`.

    An error after the first event is sent as the last event, because the status code has already
    been sent.

    Args:
        first_event: the first event.
        events: the other events. The generator is closed at the end or when the client disconnects.
        deadline: the time at which the stream ends with an error, in event-loop time.
    """

    def __init__(self, first_event: Json, events: AsyncGenerator[Json], deadline: float) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._events, self._lines = events, _stream_sse(first_event, events, deadline)
        super().__init__(self._lines, media_type="text/event-stream", headers=headers)

    async def stream_response(self, send: Send) -> None:
        """Send all events, then close the generators.

        If the connection is closed, Starlette alone would leave the generators open.
        """
        async with contextlib.aclosing(self._events), contextlib.aclosing(self._lines):
            await super().stream_response(send)


async def _stream_sse(
    first_event: Json, events: AsyncGenerator[Json], deadline: float
) -> AsyncGenerator[bytes]:
    """Yield a stream as encoded server-sent events (SSE).

    The last event is `[DONE]` or an error.
    """
    event = first_event
    try:
        while event is not None:
            yield _format_sse(event)
            async with asyncio.timeout_at(deadline):
                event = await anext(events, None)
    except Exception as error:
        yield _format_sse(to_api_error(error).to_dict())
    else:
        yield b"data: [DONE]\n\n"


def _format_sse(event: Json) -> bytes:
    """Encode an event as a server-sent event (SSE): one `data:` line with JSON."""
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
