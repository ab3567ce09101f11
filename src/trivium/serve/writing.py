"""Requests for texts: what is asked of the engine, and what comes back, whole or in pieces."""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from trivium.errors import TriviumError
from trivium.inference.sampling import Sampling
from trivium.serve.errors import ApiError
from trivium.serve.limits import Limits
from trivium.serve.models import Served
from trivium.serve.prompts import Prompt
from trivium.serve.schemas import Written
from trivium.serve.worker import Order, Piece

Event = dict[str, Any]

# Below, logits divided by it may be more than a float holds, and only the best has a chance anyway.
_COLDEST = 1e-5


@dataclass
class Usage:
    """Tokens read and written; a prompt counts once, however many texts follow it."""

    prompt: int
    written: int = 0

    def body(self) -> Event:
        """As clients read it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.written,
            "total_tokens": self.prompt + self.written,
        }


def sampling_of(asked: Written) -> Sampling:
    """How tokens are chosen. Raises ApiError (400) for a number outside its range."""
    temperature = _or(asked.temperature, 1.0)
    try:
        return Sampling(
            temperature=temperature if temperature >= _COLDEST else 0.0,
            top_k=asked.top_k,
            top_p=asked.top_p,
            min_p=asked.min_p,
            repetition_penalty=_or(asked.repetition_penalty, 1.0),
            presence_penalty=_or(asked.presence_penalty, 0.0),
            frequency_penalty=_or(asked.frequency_penalty, 0.0),
            logit_bias=tuple((int(key), bias) for key, bias in (asked.logit_bias or {}).items()),
        )
    except TriviumError as error:
        raise ApiError(400, str(error)) from None


def orders_of(
    asked: Written,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    top_logprobs: int | None,
) -> list[Order]:
    """`n` texts for every prompt, those of a prompt side by side."""
    sampling = sampling_of(asked)
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    texts = [prompt for prompt in prompts for _ in range(asked.n or 1)]
    return [
        Order(
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            seed=seed + number,
            stop=stop,
            top_logprobs=top_logprobs,
            streamed=bool(asked.stream),
        )
        for number, prompt in enumerate(texts)
    ]


def check_count(asked: Written, prompts: Sequence[Prompt], wanted: int, limits: Limits) -> None:
    """Raises ApiError (400) where more texts or tokens are asked for than the server gives."""
    if wanted > limits.max_tokens:
        raise ApiError(
            400,
            f"max_tokens is {wanted}, but this server writes {limits.max_tokens} at most.",
            param="max_tokens",
        )
    count = len(prompts) * (asked.n or 1)
    if count > limits.max_texts:
        raise ApiError(
            400,
            f"{len(prompts)} prompts with n = {asked.n or 1} are {count} texts, but a request may "
            f"have {limits.max_texts} at most.",
            param="n",
        )
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(
            400, "stream_options is for streams: ask for stream, too.", param="stream_options"
        )


async def whole_texts(served: Served, orders: Sequence[Order]) -> list[Piece]:
    """The texts of orders that are not streamed, in their order."""
    found: list[Piece | None] = [None] * len(orders)
    async with contextlib.aclosing(served.write(orders)) as pieces:
        async for number, piece in pieces:
            found[number] = piece
    return [piece for piece in found if piece is not None]


class Begun:
    """Streamed orders that were all accepted; closing it gives up what is not written."""

    def __init__(
        self, early: list[tuple[int, Piece]], rest: AsyncGenerator[tuple[int, Piece]]
    ) -> None:
        self._early, self._rest = early, rest

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        """The pieces, each with the number of its order."""
        for each in self._early:
            yield each
        async for each in self._rest:
            yield each

    async def close(self) -> None:
        """Give up what is not written."""
        await self._rest.aclose()


async def begin(served: Served, orders: Sequence[Order]) -> Begun:
    """Have orders accepted. Raises what is wrong with one of them."""
    pieces = served.write(orders)
    early: list[tuple[int, Piece]] = []
    try:
        waiting = set(range(len(orders)))
        while waiting:
            number, piece = await anext(pieces)
            early.append((number, piece))
            waiting.discard(number)
    except BaseException:
        await pieces.aclose()
        raise
    return Begun(early, pieces)


class Answer(ABC):
    """What is told of one request, whole or piece by piece.

    Args:
        asked: the request.
        prompt_tokens: of all its prompts.
        request: what the log tells of it is noted there.
        name: what its id begins with.
        kind: what OpenAI calls it.
    """

    def __init__(
        self, asked: Written, prompt_tokens: int, request: Request, *, name: str, kind: str
    ) -> None:
        self._request, self._usage = request, Usage(prompt_tokens)
        options = asked.stream_options
        self._tells_usage = bool(options and options.include_usage)
        self._head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": asked.model,
        }

    @abstractmethod
    def whole_choice(self, number: int, text: Piece) -> Event:
        """A text that is finished."""

    @abstractmethod
    def parts(self, pieces: AsyncIterator[tuple[int, Piece]]) -> AsyncIterator[Event]:
        """Choices as they grow."""

    def whole(self, texts: Sequence[Piece]) -> Event:
        """All of it at once."""
        self._usage.written = sum(text.new_tokens for text in texts)
        self._note()
        choices = [self.whole_choice(number, text) for number, text in enumerate(texts)]
        return {**self._head, "choices": choices, "usage": self._usage.body()}

    async def events(self, pieces: Begun) -> AsyncIterator[Event]:
        """Piece by piece; with a `usage`, null but for the last, where the client asked for it."""
        told: Event = {"usage": None} if self._tells_usage else {}
        async for choice in self.parts(self._counted(pieces)):
            yield {**self._head, "choices": [choice], **told}
        if self._tells_usage:
            yield {**self._head, "choices": [], "usage": self._usage.body()}

    async def _counted(self, pieces: Begun) -> AsyncIterator[tuple[int, Piece]]:
        written: dict[int, int] = {}
        async for number, piece in pieces:
            written[number] = piece.new_tokens
            self._usage.written = sum(written.values())
            yield number, piece
        self._note()

    def _note(self) -> None:
        about = f"{self._head['model']} {self._usage.prompt}+{self._usage.written} tokens"
        self._request.state.about = about


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
