"""`/v1/chat/completions`: what the assistant says next, by the chat template of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from trivium.errors import TokenizerError
from trivium.inference.text_engine import TokenScore
from trivium.language_model import LanguageModel
from trivium.serve.answering import EventStream, answered
from trivium.serve.completions import finite
from trivium.serve.errors import ApiError
from trivium.serve.limits import Limits
from trivium.serve.models import Models
from trivium.serve.prompts import check_prompts
from trivium.serve.schemas import ChatRequest, Message
from trivium.serve.worker import Piece
from trivium.serve.writing import (
    Answer,
    Event,
    begin,
    check_count,
    orders_of,
    whole_texts,
)
from trivium.text.chat import ChatTemplate


def chat(models: Models, limits: Limits) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", summary="Say what comes next in a conversation")
    async def complete(request: Request, asked: ChatRequest) -> Response:
        work = _complete(models, limits, request, asked)
        return await answered(request, work, seconds=limits.timeout)

    return router


def conversation_ids(lm: LanguageModel, messages: Sequence[Message]) -> list[int]:
    """The ids of a conversation at whose end the assistant speaks.

    Raises ApiError (400) where the template does not take these messages.
    """
    tokenizer, source = lm.text_tokenizer, lm.settings.chat_template
    assert source is not None
    tokens = {f"{role}_token": token for role, token in tokenizer.roles.items()}
    said = [{"role": _role(message), "content": _content(message)} for message in messages]
    try:
        text = ChatTemplate(source, tokens).render(said, add_generation_prompt=True)
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    except TokenizerError as error:
        raise ApiError(400, str(error), param="messages") from None


def _role(message: Message) -> str:
    """As templates know it: what OpenAI calls developer has been called system."""
    return "system" if message.role == "developer" else message.role


def _content(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


async def _complete(
    models: Models, limits: Limits, request: Request, asked: ChatRequest
) -> Response:
    served = await models.ready(asked.model)
    lm = served.require("chat/completions")
    if asked.top_logprobs and not asked.logprobs:
        raise ApiError(
            400, "top_logprobs needs logprobs: ask for both, or neither.", param="top_logprobs"
        )
    ids = await asyncio.to_thread(conversation_ids, lm, asked.messages)
    if not ids:
        raise ApiError(400, "the conversation gives no tokens.", param="messages")
    wanted = asked.max_completion_tokens or asked.max_tokens or limits.max_tokens
    check_count(asked, [ids], wanted, limits)
    (count,) = await check_prompts(lm, [ids], most=limits.max_prompt)
    top = (asked.top_logprobs or 0) if asked.logprobs else None
    orders = orders_of(asked, [ids], max_new_tokens=wanted, top_logprobs=top)
    answer = _Answer(asked, count, request)
    if asked.stream:
        pieces = await begin(served, orders)
        return EventStream(answer.events(pieces), close=pieces.close, seconds=limits.timeout)
    return JSONResponse(answer.whole(await whole_texts(served, orders)))


class _Answer(Answer):
    """What the assistant says."""

    def __init__(self, asked: ChatRequest, prompt_tokens: int, request: Request) -> None:
        kind = "chat.completion.chunk" if asked.stream else "chat.completion"
        super().__init__(asked, prompt_tokens, request, name="chatcmpl", kind=kind)
        self._asked = asked

    def whole_choice(self, number: int, text: Piece) -> Event:
        """A text that is finished."""
        return {
            "index": number,
            "message": {"role": "assistant", "content": text.text, "refusal": None},
            "logprobs": self._logprobs(text),
            "finish_reason": text.finish,
        }

    async def parts(self, pieces: AsyncIterator[tuple[int, Piece]]) -> AsyncIterator[Event]:
        """Choices as they grow."""
        begun: set[int] = set()
        async for number, piece in pieces:
            if number not in begun:
                begun.add(number)
                yield _delta(number, {"role": "assistant", "content": ""}, None, None)
            if piece.text or piece.tokens:
                yield _delta(number, {"content": piece.text}, self._logprobs(piece), None)
            if piece.finish:
                yield _delta(number, {}, None, piece.finish)

    def _logprobs(self, piece: Piece) -> Event | None:
        if not self._asked.logprobs:
            return None
        return {"content": [_token(score) for score in piece.tokens], "refusal": None}


def _delta(number: int, delta: Event, logprobs: Event | None, finish: str | None) -> Event:
    return {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _token(score: TokenScore) -> Event:
    top = [_named(name, value) for name, value in score.top]
    return {**_named(score.text, score.log_probability), "top_logprobs": top}


def _named(name: str, value: float) -> Event:
    return {"token": name, "logprob": finite(value), "bytes": list(name.encode())}
