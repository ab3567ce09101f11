"""The request body of `/v1/chat/completions`: messages, tools and their calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trivium.serve.schemas import (
    ITEMS,
    NEUTRAL,
    NO_EFFECT,
    GenerateRequest,
    NonEmptyText,
    StrictModel,
    Text,
)

_Empty = Annotated[list[Any], Field(max_length=0)]
_FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class TextPart(StrictModel):
    """A text part in the content of a chat message."""

    type: Literal["text"]
    text: Text


class CalledFunction(StrictModel):
    """The function of a tool call, with its arguments."""

    name: NonEmptyText
    arguments: Text = Field(description="The arguments: the text of a JSON object.")
    parsed_arguments: Any = Field(None, description=NO_EFFECT)


class ChatToolCall(StrictModel):
    """A tool call in a message of the assistant."""

    id: NonEmptyText
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description=NO_EFFECT)


class ChatMessage(StrictModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], ITEMS] | None = Field(
        None, description="The text of the message. It may be left out only in an answer."
    )
    name: str | None = Field(None, description=NO_EFFECT)
    tool_calls: list[ChatToolCall] | None = Field(
        None, description="The calls of an earlier answer; only if the role is assistant."
    )
    tool_call_id: NonEmptyText | None = Field(
        None,
        description="The id of the call whose result the message is; only if the role is tool.",
    )
    reasoning_content: Text | None = Field(
        None, description="The reasoning of an earlier answer; only if the role is assistant."
    )
    parsed: Any = Field(None, description=NO_EFFECT)
    # Fields of an earlier answer that the client sends back as part of the conversation.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: _Empty | None = None


class FunctionDefinition(StrictModel):
    """A function that the model may call."""

    name: _FunctionName = Field(description="Letters, digits, points, hyphens and underscores.")
    description: Text | None = Field(None, description="What the function does.")
    parameters: dict[str, Any] | None = Field(None, description="The JSON schema of the arguments.")
    strict: bool | None = Field(
        None,
        description="Whether the arguments follow the schema also if the model itself decides to "
        "call the function. Calls that tool_choice requires always follow it.",
    )


class ChatTool(StrictModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(StrictModel):
    """The name of a function."""

    name: NonEmptyText


class NamedToolChoice(StrictModel):
    """The choice of one function, which the model must call."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(GenerateRequest):
    """The request body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], ITEMS] = Field(
        description="The messages of the conversation so far."
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Maximum number of tokens to generate; default: the server's limit."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The newer name of max_tokens, which it overrides."
    )
    logprobs: bool | None = Field(
        None, description="Whether to return the log-probability of each token."
    )
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Number of most probable tokens to return at each position."
    )
    tools: Annotated[list[ChatTool], Field(max_length=128)] | None = Field(
        None, description="The functions that the model may call."
    )
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = Field(
        None,
        description="auto (default): the model decides whether to call tools. none: it does not "
        "see them. required: it must call one. A named function: it must call this function.",
    )
    parallel_tool_calls: bool | None = Field(
        None, description="Whether an answer may have several calls; default: true."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking, as in vLLM."
    )
    functions: _Empty | None = Field(None, description=NEUTRAL)
    function_call: Literal["none", "auto"] | None = Field(None, description=NEUTRAL)
    modalities: list[Literal["text"]] | None = Field(None, description=NEUTRAL)
    reasoning_effort: Literal["none"] | None = Field(None, description=NEUTRAL)
    verbosity: Literal["medium"] | None = Field(None, description=NEUTRAL)
    audio: None = Field(None, description=NEUTRAL)
    prediction: None = Field(None, description=NEUTRAL)
    web_search_options: None = Field(None, description=NEUTRAL)
