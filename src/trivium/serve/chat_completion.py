"""The endpoint `/v1/chat/completions`, compatible with OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from trivium.errors import TokenizerError, TriviumError
from trivium.inference.chat_turn import ChatTurn, ToolChoice
from trivium.inference.request import GenerationRequest, TokenLogprob
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_stream import is_utf8
from trivium.language_model import LanguageModel
from trivium.serve.api_error import ApiError
from trivium.serve.chat_schemas import ChatMessage, ChatRequest
from trivium.serve.generation import check_limits, clamp_logprob, generate_reply
from trivium.serve.model_thread import TextDelta
from trivium.serve.models import ServedModel
from trivium.serve.replies import Json, Reply
from trivium.serve.structured_output import find_constraint_field
from trivium.text import Tokenizer
from trivium.text.tool_formats import ToolFormatError


async def complete_chat(model: ServedModel, request: ChatRequest) -> Reply:
    """Generate the next message of a conversation, using the model's chat template."""
    if request.top_logprobs and not request.logprobs:
        message = "top_logprobs needs logprobs: set both, or neither."
        raise ApiError(400, message, param="top_logprobs")
    most = model.limits.max_tokens
    max_tokens = min(request.max_completion_tokens or request.max_tokens or most, most)
    turn = await asyncio.to_thread(_make_turn, model.lm, request)
    check_limits(model, request, [turn.prompt_ids], prompt_field="messages")
    tokenizer = model.lm.text_tokenizer
    readers = [turn.reader() for _ in range(request.n or 1)]

    def make_choice(index: int, delta: TextDelta, first: bool) -> Json | None:
        """Return one entry of `choices` in the format of OpenAI's API."""
        reader, finish_reason = readers[index], delta.finish_reason
        number = reader.num_calls
        reasoning, content, calls = reader.push(delta.text, is_last=finish_reason is not None)
        message: Json = {"role": "assistant", "content": "", "refusal": None} if first else {}
        if content:
            message["content"] = content
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [call.to_dict() for call in calls]
        if request.stream:
            for position, call in enumerate(message.get("tool_calls", ()), start=number):
                call["index"] = position
        elif not content and (calls or reasoning):
            message["content"] = None
        logprobs = None
        if request.logprobs:
            tokens = [_format_token(tokenizer, scored) for scored in delta.logprobs]
            logprobs = {"content": tokens, "refusal": None}
        if not message and finish_reason is None and not delta.logprobs:
            return None
        return {
            "index": index,
            "delta" if request.stream else "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason and reader.finish_reason(finish_reason),
        }

    def make_request(prompt: Sequence[int], params: SamplingParams) -> GenerationRequest:
        """Return the engine's generation request for an answer."""
        try:
            return turn.request(params)
        except TriviumError as error:
            field = _find_tool_field(error) or find_constraint_field(request)
            raise ApiError(400, str(error), param=field) from None

    top = (request.top_logprobs or 0) if request.logprobs else None
    options = request.get_sampling_options(max_new_tokens=max_tokens, top_logprobs=top)
    return await generate_reply(
        model,
        request,
        [turn.prompt_ids],
        options,
        make_choice,
        make_request=make_request,
        chat=True,
    )


def _make_turn(lm: LanguageModel, request: ChatRequest) -> ChatTurn:
    """Return a `ChatTurn` for the message to generate: the next one in the request's conversation.

    Raises ApiError (400) if the template rejects the messages, or if tools are invalid or cannot be
    used with the model.
    """
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    choice: ToolChoice = "auto"
    if isinstance(request.tool_choice, str):
        choice = request.tool_choice
    elif request.tool_choice is not None:
        choice = request.tool_choice.model_dump()
    try:
        return ChatTurn(
            lm,
            _read_messages(request.messages),
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            chat_template_kwargs=request.chat_template_kwargs,
        )
    except ToolFormatError as error:
        raise ApiError(400, str(error), param="tools") from None
    except TokenizerError as error:
        raise ApiError(400, str(error), param="messages") from None
    except TriviumError as error:
        raise ApiError(400, str(error), param=_find_tool_field(error)) from None


def _find_tool_field(error: TriviumError) -> str | None:
    """Return the request field that is named in an error of `ChatTurn`, or None."""
    fields = ("tool_choice", "chat_template_kwargs", "tools")
    return next((field for field in fields if field in str(error)), None)


def _read_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages of a request in the form that `ChatTurn` expects.

    Raises ApiError (400) if a message lacks content, or has a field that belongs to another role.
    """
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role  # OpenAI's newer name
        content = message.content
        if content is None and role != "assistant":
            given = "null" if "content" in message.model_fields_set else "missing"
            problem = f"is {given}, but a message of the role {role} needs text."
            raise _make_error(index, "content", problem)
        content = content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        turn: dict[str, Any] = {"role": role, "content": content}
        owners = {"tool_calls": "assistant", "reasoning_content": "assistant"}
        for field, owner in (*owners.items(), ("tool_call_id", "tool")):
            if getattr(message, field) and role != owner:
                problem = f"is set, but only messages of the role {owner} have it: leave it out."
                raise _make_error(index, field, problem)
        if role == "tool" and message.tool_call_id is None:
            raise _make_error(index, "tool_call_id", "is missing: repeat the id of the tool call.")
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": call.function.model_dump(include={"name", "arguments"}),
                }
                for call in message.tool_calls
            ]
        for field in ("tool_call_id", "reasoning_content"):
            if (value := getattr(message, field)) is not None:
                turn[field] = value
        turns.append(turn)
    return turns


def _make_error(index: int, field: str, problem: str) -> ApiError:
    """Return the error (400) for an invalid field of a message."""
    return ApiError(400, f"messages[{index}].{field} {problem}", param="messages")


def _format_token(tokenizer: Tokenizer, score: TokenLogprob) -> Json:
    """Return a generated token and its top log-probabilities in the format of OpenAI's API."""
    top = [_format_logprob(tokenizer, each) for each in score.top]
    return {**_format_logprob(tokenizer, score), "top_logprobs": top}


def _format_logprob(tokenizer: Tokenizer, score: TokenLogprob) -> Json:
    """Return a token's text, log-probability and UTF-8 bytes in the format of OpenAI's API."""
    data = tokenizer.token_bytes[score.id]
    data = score.text.encode() if is_utf8(data) else data
    return {"token": score.text, "logprob": clamp_logprob(score.logprob), "bytes": list(data)}
