"""`/v1/completions` and `/v1/chat/completions`: OpenAI's API over the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from trivium.errors import TokenizerError
from trivium.inference.request import GenerationRequest, TokenLogprob
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import prompt_ids
from trivium.inference.text_stream import token_texts
from trivium.language_model import LanguageModel
from trivium.serve.api_error import ApiError
from trivium.serve.models import ServedModel
from trivium.serve.replies import Reply, Usage, peek
from trivium.serve.scheduler import TextDelta
from trivium.serve.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    as_list,
)
from trivium.text.chat_template import ChatTemplate

Json = dict[str, Any]

_DEFAULT_TOKENS = 16  # of OpenAI's completions
_MIN_LOGPROB = -9999.0  # in place of minus infinity, which JSON cannot express
_CHUNK = 256  # positions whose logits are in memory at a time


class _ChoiceWriter(Protocol):
    """The shape of one endpoint's choices."""

    id_prefix: str
    object: str

    def whole(self, index: int, text: TextDelta) -> Json:
        """A finished choice."""
        ...

    def chunks(self, index: int, delta: TextDelta, *, first: bool) -> list[Json]:
        """A streamed choice's new part."""
        ...


async def _generate(
    model: ServedModel,
    request: GenerateRequest,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    writer: _ChoiceWriter,
) -> Reply:
    """`n` texts per prompt, those of a prompt side by side; text i has seed + i."""
    copies = [prompt for prompt in prompts for _ in range(request.n or 1)]
    requests = [GenerationRequest(ids, params) for ids in copies]
    if params.seed is not None:
        requests = [
            GenerationRequest(ids, params.replace(seed=params.seed + number))
            for number, ids in enumerate(copies)
        ]
    usage = Usage(sum(map(len, prompts)))
    deltas = model.scheduler.generate(requests, stream=bool(request.stream))
    if request.stream:
        events = _events(request, await peek(deltas), usage, writer)
        return Reply(events, usage)
    texts: dict[int, TextDelta] = {}
    async with contextlib.aclosing(deltas):
        async for index, delta in deltas:
            texts[index] = delta
    return _whole(request, [texts[index] for index in range(len(copies))], usage, writer)


def _whole(
    request: GenerateRequest, texts: Sequence[TextDelta], usage: Usage, writer: _ChoiceWriter
) -> Reply:
    usage.completion_tokens = sum(text.num_tokens for text in texts)
    choices = [writer.whole(index, text) for index, text in enumerate(texts)]
    head = _head(request, writer.id_prefix, writer.object)
    return Reply({**head, "choices": choices, "usage": usage.body()}, usage)


async def _events(
    request: GenerateRequest,
    deltas: AsyncGenerator[tuple[int, TextDelta]],
    usage: Usage,
    writer: _ChoiceWriter,
) -> AsyncGenerator[Json]:
    """Chunks of choices; with `include_usage` each has a usage, null but in the last."""
    head = _head(request, writer.id_prefix, writer.object)
    include_usage = bool(request.stream_options and request.stream_options.include_usage)
    no_usage = {"usage": None} if include_usage else {}
    num_tokens: dict[int, int] = {}
    async with contextlib.aclosing(deltas):
        async for index, delta in deltas:
            for choice in writer.chunks(index, delta, first=index not in num_tokens):
                yield {**head, "choices": [choice], **no_usage}
            num_tokens[index] = delta.num_tokens
            usage.completion_tokens = sum(num_tokens.values())
    if include_usage:
        yield {**head, "choices": [], "usage": usage.body()}


def _head(request: GenerateRequest, id_prefix: str, kind: str) -> Json:
    return {
        "id": f"{id_prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _check_limits(
    model: ServedModel, request: GenerateRequest, prompts: Sequence[Sequence[int]], tokens: int
) -> None:
    """Raise ApiError (400) for more tokens or texts than the server or the model allows."""
    limits = model.limits
    if tokens > limits.max_tokens:
        raise ApiError(
            400,
            f"max_tokens is {tokens}, but the server generates at most {limits.max_tokens}.",
            param="max_tokens",
        )
    if request.stream_options is not None and not request.stream:
        message = "stream_options needs stream: set both, or neither."
        raise ApiError(400, message, param="stream_options")
    model.scheduler.admit(len(prompts) * (request.n or 1))
    longest = min(limits.max_prompt, model.lm.spec.max_length or limits.max_prompt)
    if model.lm.spec.family == "decoder-only":
        longest = min(longest, limits.max_length)
    if (length := max(map(len, prompts))) > longest:
        raise ApiError(
            400,
            f"the prompt has {length} tokens, but at most {longest} are allowed: shorten it.",
            param="prompt",
            code="context_length_exceeded",
        )


# /v1/completions


@dataclass
class _Prompt:
    """A prompt's ids; its own text and tokens, without what the tokenizer puts before them."""

    ids: list[int]
    text: str
    own_tokens: int
    logprobs: Sequence[TokenLogprob | None] = ()
    """Of the prompt's own tokens; None for a first token with nothing before it."""
    token_texts: Sequence[str] = ()


async def completions(model: ServedModel, request: CompletionRequest) -> Reply:
    """Continue prompts."""
    max_tokens = _DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
    if request.best_of is not None and request.best_of != (request.n or 1):
        message = "best_of is not supported: ask for n texts with logprobs, and choose."
        raise ApiError(400, message, param="best_of")
    if max_tokens == 0 and request.stream:
        raise ApiError(400, "max_tokens is 0: there is nothing to stream.", param="stream")
    prompts = await asyncio.to_thread(_read_prompts, model.lm, as_list(request.prompt))
    ids = [prompt.ids for prompt in prompts]
    _check_limits(model, request, ids, max_tokens)
    if request.echo and request.logprobs is not None:
        if model.lm.spec.family != "decoder-only":
            raise ApiError(
                400,
                f"the model {model.name!r} reads a prompt with its encoder, which gives it no "
                "log-probability: use /v1/score with a context.",
                param="echo",
            )
        prompts = await model.scheduler.call(_score_prompts, prompts, top=request.logprobs)
    writer = _CompletionWriter(request, prompts)
    if max_tokens == 0:
        empty = TextDelta("", (), "length", 0)
        texts = [empty] * (len(prompts) * (request.n or 1))
        return _whole(request, texts, Usage(sum(map(len, ids))), writer)
    params = request.sampling_params(max_new_tokens=max_tokens, top_logprobs=request.logprobs)
    return await _generate(model, request, ids, params, writer)


def _read_prompts(lm: LanguageModel, prompts: Sequence[Any]) -> list[_Prompt]:
    """Texts as the model reads them; ids as they are."""
    both = lm.spec.family == "encoder-decoder"
    tokenizer = lm.source_tokenizer if both else lm.text_tokenizer
    read: list[_Prompt] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            own = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
            read.append(_Prompt(prompt_ids(lm, prompt), prompt, own))
        else:
            if wrong := [index for index in prompt if index >= tokenizer.vocab_size]:
                message = f"the prompt has id {wrong[0]}, but ids end at {tokenizer.vocab_size}."
                raise ApiError(400, message, param="prompt")
            text = tokenizer.decode(prompt, skip_special_tokens=False)
            read.append(_Prompt(prompt, text, len(prompt)))
    return read


def _score_prompts(lm: LanguageModel, prompts: Sequence[_Prompt], *, top: int) -> list[_Prompt]:
    """Prompts with log p of their tokens, each prompt by itself."""
    scored_prompts: list[_Prompt] = []
    for prompt in prompts:
        scored = _prompt_logprobs(lm, prompt.ids, top)
        start = len(prompt.ids) - prompt.own_tokens
        names = token_texts(lm.text_tokenizer, list(zip([None, *prompt.ids], prompt.ids)))
        scored_prompts.append(
            _Prompt(prompt.ids, prompt.text, prompt.own_tokens, scored[start:], names[start:])
        )
    return scored_prompts


@torch.inference_mode()
def _prompt_logprobs(lm: LanguageModel, ids: list[int], top: int) -> list[TokenLogprob | None]:
    """log p of every id given those before it, with the most probable tokens of its position."""
    tokenizer, scores = lm.text_tokenizer, list[TokenLogprob | None]([None])
    if len(ids) < 2:
        return scores
    hidden = lm.module(torch.tensor([ids[:-1]], device=lm.module.device))[0]
    for start, stop in pairwise([*range(0, len(hidden), _CHUNK), len(hidden)]):
        logits = lm.module.logits(hidden[start:stop])[:, : tokenizer.vocab_size]
        logprobs = logits.float().log_softmax(-1)
        best = logprobs.topk(min(top, tokenizer.vocab_size))
        for position, values, indices in zip(
            range(start, stop), best.values.tolist(), best.indices.tolist()
        ):
            previous, token_id = ids[position], ids[position + 1]
            pairs = [(previous, index) for index in (token_id, *indices)]
            text, *texts = token_texts(tokenizer, pairs)
            logprob = float(logprobs[position - start, token_id])
            scores.append(TokenLogprob(token_id, text, logprob, tuple(zip(texts, values))))
    return scores


class _CompletionWriter:
    """Choices of `/v1/completions`."""

    id_prefix, object = "cmpl", "text_completion"

    def __init__(self, request: CompletionRequest, prompts: Sequence[_Prompt]) -> None:
        self._request, self._prompts = request, prompts
        self._offsets: dict[int, int] = {}  # characters of a choice's tokens so far

    def whole(self, index: int, text: TextDelta) -> Json:
        return self._choice(index, text, first=True)

    def chunks(self, index: int, delta: TextDelta, *, first: bool) -> list[Json]:
        return [self._choice(index, delta, first=first)]

    def _choice(self, index: int, delta: TextDelta, *, first: bool) -> Json:
        text, names, scores = delta.text, [], list[TokenLogprob | None](delta.logprobs)
        if first and self._request.echo:
            prompt = self._prompts[index // (self._request.n or 1)]
            text, names = prompt.text + text, list(prompt.token_texts)
            scores = [*prompt.logprobs, *scores]
        names += [score.text for score in delta.logprobs]
        logprobs = None
        if self._request.logprobs is not None:
            logprobs = self._logprobs(index, names, scores)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }

    def _logprobs(
        self, index: int, names: Sequence[str], scores: Sequence[TokenLogprob | None]
    ) -> Json:
        offsets: list[int] = []
        for name in names:
            offsets.append(self._offsets.setdefault(index, 0))
            self._offsets[index] += len(name)
        return {
            "tokens": list(names),
            "token_logprobs": [score and _finite(score.logprob) for score in scores],
            "top_logprobs": [score and _top(score) for score in scores],
            "text_offset": offsets,
        }


def _top(score: TokenLogprob) -> dict[str, float]:
    """The most probable tokens and the chosen one; of tokens with equal text the first."""
    likely: dict[str, float] = {}
    for text, logprob in (*score.top, (score.text, score.logprob)):
        likely.setdefault(text, _finite(logprob))
    return likely


def _finite(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB)


# /v1/chat/completions


async def chat_completions(model: ServedModel, request: ChatRequest) -> Reply:
    """Answer in a conversation, by the chat template of the model."""
    if request.top_logprobs and not request.logprobs:
        message = "top_logprobs needs logprobs: set both, or neither."
        raise ApiError(400, message, param="top_logprobs")
    max_tokens = request.max_completion_tokens or request.max_tokens or model.limits.max_tokens
    ids = await asyncio.to_thread(_conversation_ids, model.lm, request.messages)
    _check_limits(model, request, [ids], max_tokens)
    top = (request.top_logprobs or 0) if request.logprobs else None
    params = request.sampling_params(max_new_tokens=max_tokens, top_logprobs=top)
    return await _generate(model, request, [ids], params, _ChatWriter(request))


def _conversation_ids(lm: LanguageModel, messages: Sequence[ChatMessage]) -> list[int]:
    """The ids of a conversation up to where the assistant's next message begins.

    Raises ApiError (400) for messages that the template refuses.
    """
    tokenizer, source = lm.text_tokenizer, lm.settings.chat_template
    assert source is not None
    tokens = {f"{role}_token": token for role, token in tokenizer.roles.items()}
    turns = [{"role": _role(each), "content": _content(each)} for each in messages]
    try:
        text = ChatTemplate(source, tokens).render(turns, add_generation_prompt=True)
    except TokenizerError as error:
        raise ApiError(400, str(error), param="messages") from None
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if not ids:
        raise ApiError(400, "the conversation is empty.", param="messages")
    return list(ids)


def _role(message: ChatMessage) -> str:
    """The role as templates know it: OpenAI's developer is their system."""
    return "system" if message.role == "developer" else message.role


def _content(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


class _ChatWriter:
    """Choices of `/v1/chat/completions`."""

    id_prefix = "chatcmpl"

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self.object = "chat.completion.chunk" if request.stream else "chat.completion"

    def whole(self, index: int, text: TextDelta) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text.text, "refusal": None},
            "logprobs": self._logprobs(text),
            "finish_reason": text.finish_reason,
        }

    def chunks(self, index: int, delta: TextDelta, *, first: bool) -> list[Json]:
        choices: list[Json] = []
        if first:
            choices.append(_delta(index, {"role": "assistant", "content": ""}))
        if delta.text or delta.logprobs:
            choices.append(_delta(index, {"content": delta.text}, self._logprobs(delta)))
        if delta.finish_reason:
            choices.append(_delta(index, {}, finish_reason=delta.finish_reason))
        return choices

    def _logprobs(self, delta: TextDelta) -> Json | None:
        if not self._request.logprobs:
            return None
        content = [
            {
                **_named(score.text, score.logprob),
                "top_logprobs": [_named(text, logprob) for text, logprob in score.top],
            }
            for score in delta.logprobs
        ]
        return {"content": content, "refusal": None}


def _delta(
    index: int, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None
) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _named(text: str, logprob: float) -> Json:
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}
