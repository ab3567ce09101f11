"""`/v1/completions`: texts that go on from prompts, whole or in pieces."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from trivium.inference.text_engine import TokenScore
from trivium.serve.answering import EventStream, answered
from trivium.serve.errors import ApiError
from trivium.serve.limits import Limits
from trivium.serve.models import Models, Served
from trivium.serve.prompts import Prompt, ScoredPrompt, check_prompts, score_prompts
from trivium.serve.schemas import CompletionRequest
from trivium.serve.worker import Piece
from trivium.serve.writing import (
    Answer,
    Event,
    begin,
    check_count,
    orders_of,
    whole_texts,
)

_USUAL_TOKENS = 16
_LOWEST = -9999.0
"""Told in place of minus infinity, which JSON has no word for."""


class Names:
    """Tokens with their log-probabilities and places, as clients of OpenAI read them."""

    def __init__(self) -> None:
        self.end = 0

    def body(self, names: Sequence[str], scores: Sequence[TokenScore | None]) -> Event:
        """Of some tokens behind those before."""
        found: Event = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for name, score in zip(names, scores, strict=True):
            found["tokens"].append(name)
            found["text_offset"].append(self.end)
            found["token_logprobs"].append(score and finite(score.log_probability))
            found["top_logprobs"].append(score and _likely(score))
            self.end += len(name)
        return found


def finite(value: float) -> float:
    """A log-probability that JSON can write."""
    return max(value, _LOWEST)


def _likely(score: TokenScore) -> dict[str, float]:
    """The most probable tokens and the one that stands there; of equal names the first."""
    found: dict[str, float] = {}
    for name, value in (*score.top, (score.text, score.log_probability)):
        found.setdefault(name, finite(value))
    return found


def completions(models: Models, limits: Limits) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/completions", summary="Continue texts")
    async def complete(request: Request, asked: CompletionRequest) -> Response:
        work = _complete(models, limits, request, asked)
        return await answered(request, work, seconds=limits.timeout)

    return router


async def _complete(
    models: Models, limits: Limits, request: Request, asked: CompletionRequest
) -> Response:
    served = await models.ready(asked.model)
    lm = served.require("completions")
    prompts = _prompts(asked)
    wanted = _USUAL_TOKENS if asked.max_tokens is None else asked.max_tokens
    check_count(asked, prompts, wanted, limits)
    _check_supported(asked)
    counts = await check_prompts(lm, prompts, most=limits.max_prompt)
    told: list[ScoredPrompt] = []
    if asked.echo:
        told = await _echoed(served, prompts, asked)
    orders = []
    if wanted:
        orders = orders_of(asked, prompts, max_new_tokens=wanted, top_logprobs=asked.logprobs)
    answer = _Answer(asked, told, sum(counts), request)
    if asked.stream:
        pieces = await begin(served, orders)
        events = answer.events(pieces)
        return EventStream(events, close=pieces.close, seconds=limits.timeout)
    texts = await whole_texts(served, orders) if orders else answer.nothing(counts)
    return JSONResponse(answer.whole(texts))


class _Answer(Answer):
    """Texts that go on from prompts, with their prompts where that is asked for."""

    def __init__(
        self,
        asked: CompletionRequest,
        told: Sequence[ScoredPrompt],
        prompt_tokens: int,
        request: Request,
    ) -> None:
        super().__init__(asked, prompt_tokens, request, name="cmpl", kind="text_completion")
        self._asked, self._told = asked, told

    def nothing(self, counts: Sequence[int]) -> list[Piece]:
        """What is written where no token is to be: only the prompts may be looked at."""
        texts = [Piece("", (), "length", count, 0) for count in counts]
        return [text for text in texts for _ in range(self._asked.n or 1)]

    def whole_choice(self, number: int, text: Piece) -> Event:
        """A text that is finished."""
        return self._choice(number, text, Names())

    async def parts(self, pieces: AsyncIterator[tuple[int, Piece]]) -> AsyncIterator[Event]:
        """Choices as they grow."""
        names: dict[int, Names] = {}
        async for number, piece in pieces:
            begins = number not in names
            place = names.setdefault(number, Names())
            if piece.text or piece.tokens or piece.finish or (begins and self._told):
                yield self._choice(number, piece, place, begins=begins)

    def _choice(self, number: int, piece: Piece, names: Names, *, begins: bool = True) -> Event:
        """One choice, begun with its prompt where that is asked for."""
        text, tokens, scores = piece.text, [], []
        if begins and self._told:
            prompt = self._told[number // (self._asked.n or 1)]
            text = prompt.text + text
            tokens, scores = [*prompt.names], [*prompt.tokens]
        logprobs = None
        if self._asked.logprobs is not None:
            tokens += [token.text for token in piece.tokens]
            logprobs = names.body(tokens, [*scores, *piece.tokens])
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": piece.finish}


def _prompts(asked: CompletionRequest) -> list[Prompt]:
    """The prompts: texts, or ids of one or of several."""
    given: Any = asked.prompt
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return list(given)


def _check_supported(asked: CompletionRequest) -> None:
    """Raises ApiError (400) for what cannot be done, rather than to do something else."""
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise ApiError(
            400,
            "best_of draws texts to throw most of them away, which this server does not: ask for "
            "n texts with logprobs, and choose.",
            param="best_of",
        )
    if asked.max_tokens == 0 and asked.stream:
        raise ApiError(400, "max_tokens is 0: there is nothing to stream.", param="stream")


async def _echoed(
    served: Served, prompts: Sequence[Prompt], asked: CompletionRequest
) -> list[ScoredPrompt]:
    """The prompts as they are given back, scored where log-probabilities are asked for."""
    lm = served.lm
    assert lm is not None
    if asked.logprobs is None:
        tokenizer = lm.text_tokenizer
        texts = (
            prompt
            if isinstance(prompt, str)
            else tokenizer.decode(prompt, skip_special_tokens=False)
            for prompt in prompts
        )
        return [ScoredPrompt(text, [], []) for text in texts]
    if lm.spec.family != "decoder-only":
        raise ApiError(
            400,
            f"the model {served.name!r} reads a prompt with its encoder, which says nothing of how "
            "probable it is: echo and logprobs together need a decoder alone. /v1/score with "
            "'given' scores its answers.",
            param="echo",
        )
    items = list(itertools.product(prompts, [asked.logprobs]))
    return await served.ask(score_prompts, items, key="prompts")
