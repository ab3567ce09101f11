"""Types of request bodies, and those of generation; unknown fields and wrong types are refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from trivium.inference.sampling_params import SamplingParams
from trivium.text.literals import SpecialTokens

_MAX_ID = 2**31 - 1
ITEMS = Field(fail_fast=True, min_length=1, max_length=2**17)
# JSON can express lone surrogates, which are not text; pydantic refuses them in bounded strings.
_MAX_CHARACTERS = 2**31 - 1

Text = Annotated[str, Field(max_length=_MAX_CHARACTERS)]
NonEmptyText = Annotated[str, Field(min_length=1, max_length=_MAX_CHARACTERS)]
TextList = Annotated[list[Text], ITEMS]
Texts = Text | TextList
TokenId = Annotated[int, Field(ge=0, le=_MAX_ID)]
Ids = Annotated[list[TokenId], ITEMS]
Prompt = Text | TextList | Ids | Annotated[list[Ids], ITEMS]
PROMPT_DESCRIPTION = "A text, texts, token ids, or lists of token ids."

NO_EFFECT = "Accepted, without effect."
NOT_SUPPORTED = "Not supported"
_NEUTRAL = f"{NOT_SUPPORTED}: only what means none of it."
_Empty = Annotated[list[Any], Field(max_length=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelRequest(_Strict):
    """A request to a model."""

    model: str = Field(description="The id of a model of /v1/models.")
    special_tokens: SpecialTokens | None = Field(
        None,
        description="What the name of a special token in a text is: text, or the special token. By "
        "default special in prompts of /v1/completions and /v1/tokenize, text elsewhere ([MASK] "
        "aside in /v1/fill-mask).",
    )


class StreamOptions(_Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(None, description="End with a chunk of token counts.")
    include_obfuscation: bool | None = Field(None, description=NO_EFFECT)


# Sampling options whose JSON differs from Python's.
_JSON_TYPES: dict[str, Any] = {
    "seed": Annotated[int, Field(ge=-(2**63), le=2**63 - 1)],
    "stop": NonEmptyText | Annotated[list[NonEmptyText], Field(max_length=16)],
    "logit_bias": dict[
        Annotated[int, Field(strict=False, ge=0)], Annotated[float, Field(ge=-100.0, le=100.0)]
    ],
}
_OTHER_NAMES = ("max_new_tokens", "top_logprobs", "choices")
"""Fields of `SamplingParams` that OpenAI's API spells in a way of its own, or does not have."""


def _sampling_fields() -> dict[str, Any]:
    """The fields of `SamplingParams` as optional JSON fields with their bounds."""
    types, json_fields = get_type_hints(SamplingParams), dict[str, Any]()
    for each in fields(SamplingParams):
        if each.name not in _OTHER_NAMES:
            metadata = dict(each.metadata)
            description = metadata.pop("description")
            kind: Any = _JSON_TYPES.get(each.name) or Annotated[types[each.name], Field(**metadata)]
            json_fields[each.name] = (kind | None, Field(None, description=description))
    return json_fields


_SAMPLING_FIELDS = _sampling_fields()
_Sampling: type[ModelRequest] = create_model("_Sampling", __base__=ModelRequest, **_SAMPLING_FIELDS)


class GenerateRequest(_Sampling):
    """What `/v1/completions` and `/v1/chat/completions` have in common."""

    n: Annotated[int, Field(ge=1)] | None = Field(None, description="Texts per prompt.")
    stream: bool | None = Field(None, description="Server-sent events rather than one answer.")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description=NO_EFFECT)
    metadata: dict[str, str] | None = Field(None, description=NO_EFFECT)
    store: bool | None = Field(None, description="Accepted; nothing is stored.")
    service_tier: str | None = Field(None, description=NO_EFFECT)
    safety_identifier: str | None = Field(None, description=NO_EFFECT)
    prompt_cache_key: str | None = Field(None, description=NO_EFFECT)

    def sampling_options(self, *, max_new_tokens: int, top_logprobs: int | None) -> dict[str, Any]:
        """The sampling options that the request sets."""
        options = self.model_dump(include={*_SAMPLING_FIELDS}, exclude_none=True)
        if "seed" in options:
            options["seed"] %= 2**63  # OpenAI's may be negative.
        return {**options, "max_new_tokens": max_new_tokens, "top_logprobs": top_logprobs}


class CompletionRequest(GenerateRequest):
    """`POST /v1/completions`."""

    prompt: Prompt = Field(description=PROMPT_DESCRIPTION)
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Number of tokens to generate, at most the server's limit; 16 by default."
    )
    echo: bool | None = Field(None, description="Put the prompt before the generated text.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Log-probabilities of the tokens and of that many most probable ones."
    )
    best_of: Annotated[int, Field(ge=1)] | None = Field(None, description="Only as large as n.")
    suffix: None = Field(None, description="Not supported.")


class TextPart(_Strict):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class ChatMessage(_Strict):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], ITEMS] | None = Field(
        description="null only of an assistant without words."
    )
    name: str | None = Field(None, description=NO_EFFECT)
    # Of an answer that comes back as history.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: _Empty | None = None
    tool_calls: _Empty | None = None


class TextFormat(_Strict):
    """Plain text, the only supported format of an answer."""

    type: Literal["text"]


class ChatRequest(GenerateRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], ITEMS]
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Largest number of tokens to generate; the server's limit by default."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The newer name of max_tokens."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: TextFormat | None = Field(None, description=_NEUTRAL)
    tools: _Empty | None = Field(None, description=_NEUTRAL)
    tool_choice: Literal["none", "auto"] | None = Field(None, description=_NEUTRAL)
    parallel_tool_calls: bool | None = Field(None, description=NO_EFFECT)
    functions: _Empty | None = Field(None, description=_NEUTRAL)
    function_call: Literal["none", "auto"] | None = Field(None, description=_NEUTRAL)
    modalities: list[Literal["text"]] | None = Field(None, description=_NEUTRAL)
    reasoning_effort: Literal["none"] | None = Field(None, description=_NEUTRAL)
    verbosity: Literal["medium"] | None = Field(None, description=_NEUTRAL)
    audio: None = Field(None, description=_NEUTRAL)
    prediction: None = Field(None, description=_NEUTRAL)
    web_search_options: None = Field(None, description=_NEUTRAL)


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


def as_list(value: Any) -> list[Any]:
    """One text, or the ids of one, as a list of one; several as they are."""
    one = isinstance(value, str) or (bool(value) and isinstance(value[0], int))
    return [value] if one else list(value)
