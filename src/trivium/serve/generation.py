"""The endpoint `/v1/completions`, compatible with OpenAI's API, and code shared with chat."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from trivium.errors import SpecError, TriviumError
from trivium.inference.constraint import Constraint
from trivium.inference.forward import vocabulary_log_probabilities
from trivium.inference.request import GenerationRequest, TokenLogprob, token_logprob
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import prompt_ids
from trivium.inference.text_stream import token_texts
from trivium.language_model import LanguageModel
from trivium.serve.api_error import ApiError
from trivium.serve.limits import Limits
from trivium.serve.model_thread import TextDelta
from trivium.serve.models import ServedModel
from trivium.serve.replies import Json, Reply, Usage
from trivium.serve.schemas import CompletionRequest, GenerateRequest, as_list
from trivium.serve.structured_output import find_constraint_field, read_constraint
from trivium.text import Tokenizer

_DEFAULT_TOKENS = 16  # the default of OpenAI's completions
_MIN_LOGPROB = -9999.0  # replaces minus infinity, which JSON cannot express
_CHUNK_SIZE = 256  # the number of positions whose logits are in memory at the same time

MakeChoice = Callable[[int, TextDelta, bool], Json | None]
"""A function that builds an entry of `choices`: (index, new text, is first text) -> entry.

Returns None if the new text adds nothing to the entry.
"""
MakeRequest = Callable[[Sequence[int], SamplingParams], GenerationRequest]
"""A function that builds the engine's request from prompt ids and sampling options."""


async def generate_reply(
    model: ServedModel,
    request: GenerateRequest,
    prompts: Sequence[Sequence[int]],
    options: Json,
    make_choice: MakeChoice,
    *,
    make_request: MakeRequest = GenerationRequest,
    chat: bool = False,
) -> Reply:
    """Generate `n` texts per prompt.

    Returns the reply, which is streamed if the request asks for it.

    The texts of a prompt have consecutive indices. The text with index i uses the seed `seed` + i.
    As in OpenAI's API, the default temperature is 1, unless the model defines another default.

    Args:
        model: the model that generates the texts.
        request: the request body.
        prompts: the token ids of each prompt.
        options: the sampling options.
        make_choice: builds an entry of `choices` in the reply (see `MakeChoice`).
        make_request: builds the engine's request from prompt ids and sampling options.
        chat: whether the texts are assistant messages of a conversation.

    Raises ApiError (400) if an option is invalid.
    """
    common: Json = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": request.model,
    }
    usage = Usage(sum(map(len, prompts)))
    copies = [prompt for prompt in prompts for _ in range(request.n or 1)]
    options = {**options, **read_constraint(request)}
    if options["max_new_tokens"] == 0:
        texts = dict.fromkeys(range(len(copies)), TextDelta("", (), "length", 0))
    else:
        try:
            requests = await asyncio.to_thread(
                _make_requests, model.lm, copies, options, make_request
            )
        except TriviumError as error:
            raise ApiError(400, str(error), param=find_constraint_field(request)) from None
        deltas = model.thread.generate(requests, stream=bool(request.stream))
        if request.stream:
            if chat:
                common["object"] += ".chunk"
            return Reply(_stream_chunks(request, deltas, usage, common, make_choice), usage)
        async with contextlib.aclosing(deltas):
            texts = {index: text async for index, text in deltas}
    usage.completion_tokens = sum(text.num_tokens for text in texts.values())
    choices = [make_choice(index, texts[index], True) for index in range(len(copies))]
    return Reply({**common, "choices": choices, "usage": usage.to_dict()}, usage)


def _make_requests(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], options: Json, make_request: MakeRequest
) -> list[GenerationRequest]:
    """Return one request to the engine per prompt. The request of prompt i uses the seed plus i.

    Constraints are compiled here instead of in the model's thread, because this can take long.

    Raises the errors of `LanguageModel.sampling_params` and `Constraint.from_params`.
    """
    requests = []
    for number, ids in enumerate(prompts):
        params = lm.sampling_params(ids, options, temperature=1.0)
        seed = None if params.seed is None else params.seed + number
        requests.append(make_request(ids, params.replace(seed=seed)))
    first, stop_ids = requests[0], lm.generation_rules.stop_ids
    Constraint.from_params(first.params, lm.text_tokenizer, stop_ids, leading_space=first.answers)
    return requests


async def _stream_chunks(
    request: GenerateRequest,
    deltas: AsyncGenerator[tuple[int, TextDelta]],
    usage: Usage,
    common: Json,
    make_choice: MakeChoice,
) -> AsyncGenerator[Json]:
    """Yield the chunks of a streamed reply. Each chunk has one entry in `choices`.

    With the stream option `include_usage`, a last chunk without entries contains the token counts,
    and all earlier chunks contain `"usage": null`. `common` contains the fields that all chunks
    share.
    """
    include_usage = bool(request.stream_options and request.stream_options.include_usage)
    no_usage = {"usage": None} if include_usage else {}
    num_tokens: dict[int, int] = {}
    async with contextlib.aclosing(deltas):
        async for index, delta in deltas:
            choice = make_choice(index, delta, index not in num_tokens)
            if choice is not None:
                yield {**common, "choices": [choice], **no_usage}
            num_tokens[index] = delta.num_tokens
            usage.completion_tokens = sum(num_tokens.values())
    if include_usage:
        yield {**common, "choices": [], "usage": usage.to_dict()}


def check_limits(
    model: ServedModel,
    request: GenerateRequest,
    prompts: Sequence[Sequence[int]],
    *,
    prompt_field: str,
) -> None:
    """Raise ApiError (400) if a prompt is too long, or if the request asks for too many texts.

    `stream_options` without `stream` is also an error. `prompt_field` is the field of the request
    body that contains the prompts, for the error message.
    """
    limits = model.limits
    if request.stream_options is not None and not request.stream:
        message = "stream_options needs stream: set both, or neither."
        raise ApiError(400, message, param="stream_options")
    check_num_texts(len(prompts) * (request.n or 1), limits)
    most, name = find_prompt_limit(model.lm, limits)
    check_num_tokens(prompt_field, max(map(len, prompts)), most, f"that is {name}")


def find_prompt_limit(lm: LanguageModel, limits: Limits) -> tuple[int, str]:
    """Return the maximum number of tokens in a prompt, and the name of this limit for messages.

    The context length of an encoder is not a limit, because an encoder splits long texts into
    windows.
    """
    longest = [(limits.max_prompt, "the server's limit for prompts")]
    limit = lm.context_length
    if lm.spec.family != "encoder-only" and limit is not None:
        longest.append((limit, "the model's context length"))
    if lm.spec.family == "decoder-only":
        longest.append((limits.slot_length, "the server's slot length"))
    return min(longest)


def check_num_texts(num_texts: int, limits: Limits) -> None:
    """Raise ApiError (400) if a request has more texts than the server accepts at once.

    The maximum is `Limits.max_texts`, or the number of slots plus the queue size if this is
    smaller.
    """
    if num_texts > (most := min(limits.max_texts, limits.slots + limits.max_queue)):
        raise ApiError(400, f"the request has {num_texts} texts, but at most {most} are allowed.")


def check_num_tokens(
    param: str, num_tokens: int, max_tokens: int, hint: str = "shorten it"
) -> None:
    """Raise ApiError (400) if a text has more than `max_tokens` tokens.

    Args:
        param: the field of the request body that contains the text.
        num_tokens: the number of tokens of the text.
        max_tokens: the maximum number of tokens.
        hint: advice to the user, appended to the error message.
    """
    if num_tokens > max_tokens:
        raise ApiError(
            400,
            f"{param} has {num_tokens} tokens, but at most {max_tokens} are allowed: {hint}.",
            param=param,
            code="context_length_exceeded",
        )


def check_token_ids(param: str, ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Raise ApiError (400) if a token id is not in the vocabulary.

    `param` is the field of the request body that contains the ids.
    """
    if (largest := max(ids, default=0)) > (last := tokenizer.vocab_size - 1):
        raise ApiError(400, f"{param} has the id {largest}, but the last is {last}.", param=param)


_Token = tuple[str, float | None, dict[str, float] | None]
"""A tuple of a token's text, its log-probability, and a dict of the most probable tokens.

The dict maps the text of each of these tokens to its log-probability. For the first token of a
prompt, the log-probability and the dict are None.
"""


@dataclass
class _Prompt:
    """A tokenized prompt.

    Args:
        ids: the token ids, including the special tokens that the tokenizer adds at the start.
        text: the text of the prompt.
        num_text_tokens: the number of tokens without these special tokens.
    """

    ids: list[int]
    text: str
    num_text_tokens: int


async def complete(model: ServedModel, request: CompletionRequest) -> Reply:
    """Generate continuations of prompts."""
    wanted = _DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
    max_tokens = min(wanted, model.limits.max_tokens)
    n = request.n or 1
    if request.best_of is not None and request.best_of != n:
        message = "best_of is not supported: ask for n texts with logprobs, and choose."
        raise ApiError(400, message, param="best_of")
    if max_tokens == 0 and request.stream:
        raise ApiError(400, "max_tokens is 0: there is nothing to stream.", param="stream")
    texts = as_list(request.prompt)
    if request.suffix is None:
        prompts = await asyncio.to_thread(_encode_prompts, model.lm.prompting, texts)
    else:
        _check_infilling(request, texts)
        prompts = await asyncio.to_thread(_encode_infills, model.lm, texts, request.suffix)
    ids = [prompt.ids for prompt in prompts]
    check_limits(model, request, ids, prompt_field="prompt")
    tokens: list[list[_Token]] = [[] for _ in prompts]
    if request.echo and request.logprobs is not None:
        if model.lm.spec.family != "decoder-only":
            raise ApiError(
                400,
                f"the model {model.name!r} reads a prompt with its encoder, which gives it no "
                "log-probability: use /v1/score with a context.",
                param="echo",
            )
        tokens = await model.thread.call(
            _score_prompts, prompts, sum(map(len, ids)), num_top=request.logprobs
        )
    offsets = [0] * (len(prompts) * n)  # characters of each choice's tokens so far

    def make_choice(index: int, delta: TextDelta, first: bool) -> Json:
        """Return one entry of `choices` in the format of OpenAI's API."""
        text, new = delta.text, [_format_token(scored) for scored in delta.logprobs]
        if first and request.echo:
            text, new = prompts[index // n].text + text, [*tokens[index // n], *new]
        logprobs = None
        if request.logprobs is not None:
            ends = list(accumulate((len(name) for name, _, _ in new), initial=offsets[index]))
            logprobs = {
                "tokens": [name for name, _, _ in new],
                "token_logprobs": [value for _, value, _ in new],
                "top_logprobs": [top for _, _, top in new],
                "text_offset": ends[:-1],
            }
            offsets[index] = ends[-1]
        finish_reason = delta.finish_reason
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    options = request.get_sampling_options(max_new_tokens=max_tokens, top_logprobs=request.logprobs)
    return await generate_reply(model, request, ids, options, make_choice)


def _encode_prompts(lm: LanguageModel, prompts: Sequence[Any]) -> list[_Prompt]:
    """Tokenize prompts. If a prompt is already a list of token ids, use the ids unchanged.

    Raises ApiError (400) for an id that is not in the vocabulary.
    """
    has_encoder = lm.spec.family == "encoder-decoder"
    tokenizer = lm.source_tokenizer if has_encoder else lm.text_tokenizer
    encoded: list[_Prompt] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            num_text_tokens = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
            encoded.append(_Prompt(prompt_ids(lm, prompt), prompt, num_text_tokens))
        else:
            check_token_ids("prompt", prompt, tokenizer)
            text = tokenizer.decode(prompt, skip_special_tokens=False)
            encoded.append(_Prompt(prompt, text, len(prompt)))
    return encoded


def _check_infilling(request: CompletionRequest, prompts: Sequence[Any]) -> None:
    """Raise ApiError (400) if a request with a suffix uses `echo`, or token ids as the prompt."""
    if request.echo:
        message = "echo returns the beginning of a text, and suffix fills a gap: leave one out."
        raise ApiError(400, message, param="echo")
    if not all(isinstance(prompt, str) for prompt in prompts):
        message = "with suffix, the prompt is a text, not token ids."
        raise ApiError(400, message, param="prompt")


def _encode_infills(lm: LanguageModel, prefixes: Sequence[str], suffix: str) -> list[_Prompt]:
    """Make one infilling prompt from each prefix and the suffix, and tokenize it.

    Raises ApiError (400) if the model cannot fill the gap.
    """
    try:
        ids = [lm.infill_ids(prefix, suffix) for prefix in prefixes]
    except SpecError as error:
        raise ApiError(400, str(error), param="suffix") from None
    return [_Prompt(one, prefix, len(one)) for one, prefix in zip(ids, prefixes, strict=True)]


@torch.inference_mode()
def _score_prompts(
    lm: LanguageModel, prompts: Sequence[_Prompt], *, num_top: int
) -> list[list[_Token]]:
    """Compute the log-probability of every token of each prompt, given the preceding tokens.

    Returns a list of tokens for each prompt, without the special tokens that the tokenizer adds at
    the start. At each position, the `num_top` most probable tokens are also returned. Each prompt
    has its own forward pass.
    """
    tokenizer, scored = lm.text_tokenizer, list[list[_Token]]()
    for prompt in prompts:
        ids = prompt.ids
        (first,) = token_texts(tokenizer, [(None, ids[0])])
        tokens: list[_Token] = [(first, None, None)]
        hidden = lm.module(torch.tensor([ids], device=lm.module.device))[0, :-1]
        for start in range(0, len(hidden), _CHUNK_SIZE):
            states = hidden[start : start + _CHUNK_SIZE]
            logprobs = vocabulary_log_probabilities(lm.module, states, tokenizer.vocab_size)
            for row, (previous, token_id) in zip(logprobs, pairwise(ids[start:])):
                tokens.append(
                    _format_token(token_logprob(tokenizer, previous, token_id, row, num_top))
                )
        scored.append(tokens[len(ids) - prompt.num_text_tokens :])
    return scored


def _format_token(score: TokenLogprob) -> _Token:
    """Return a token's text, its log-probability, and a dict of the most probable tokens.

    The dict is text -> log-probability, and also contains the token itself. If several tokens have
    the same text, only the first one is kept.
    """
    top: dict[str, float] = {}
    for each in (*score.top, score):
        top.setdefault(each.text, clamp_logprob(each.logprob))
    return score.text, clamp_logprob(score.logprob), top


def clamp_logprob(logprob: float) -> float:
    """Replace minus infinity with `_MIN_LOGPROB`, because JSON cannot express infinity."""
    return max(logprob, _MIN_LOGPROB)
