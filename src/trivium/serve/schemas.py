"""Types of request bodies, and those of generation; unknown fields and wrong types are refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    create_model,
)

from trivium.inference.sampling_params import SamplingParams

MAX_ITEMS, _MAX_ID = 2**17, 2**31 - 1


def _utf8(text: str) -> str:
    """JSON can express lone surrogates, which are not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("should be valid text, but has a lone surrogate") from None
    return text


def _prompts(value: Any) -> str | list[str] | list[int] | list[list[int]]:
    """By hand, because a union would try each of its members on each of a million ids."""
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, list) and 0 < len(value) <= MAX_ITEMS:
        if all(type(each) is str for each in value):
            return [_utf8(each) for each in value]
        if _are_ids(value) or all(type(each) is list and each and _are_ids(each) for each in value):
            return value
    raise ValueError(
        "should be a text, a list of texts, a list of token ids or a list of such lists, not "
        f"empty and of at most {MAX_ITEMS} entries"
    )


def _are_ids(values: list[Any]) -> bool:
    return all(type(each) is int and 0 <= each <= _MAX_ID for each in values)


_IDS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": _MAX_ID},
    "minItems": 1,
    "maxItems": MAX_ITEMS,
}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {**_IDS_SCHEMA, "items": {"type": "string"}},
        _IDS_SCHEMA,
        {**_IDS_SCHEMA, "items": _IDS_SCHEMA},
    ]
}

Text = Annotated[str, AfterValidator(_utf8)]
NonEmptyText = Annotated[Text, Field(min_length=1)]
TextList = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS)]
Texts = Text | TextList
TokenId = Annotated[int, Field(ge=0, le=_MAX_ID)]
Prompt = Annotated[Any, PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
PROMPT_DESCRIPTION = "A text, texts, token ids, or lists of token ids."

NO_EFFECT = "Accepted, without effect."


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelRequest(_Strict):
    """A request to a model."""

    model: str = Field(description="The id of a model of /v1/models.")


class StreamOptions(_Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(None, description="End with a chunk of token counts.")
    include_obfuscation: bool | None = Field(None, description=NO_EFFECT)


# Sampling options whose JSON differs from Python's: OpenAI's types, or bounds that keep logits
# within the range of float32 whatever a client combines.
_JSON_TYPES: dict[str, Any] = {
    "temperature": Annotated[float, Field(ge=0.0, le=100.0)],
    "repetition_penalty": Annotated[float, Field(ge=0.01, le=100.0)],
    "seed": Annotated[int, Field(ge=0, le=2**63 - 1)],
    "stop": NonEmptyText | Annotated[list[NonEmptyText], Field(max_length=16)],
    "logit_bias": dict[
        Annotated[str, Field(pattern=r"^[0-9]{1,9}$")],
        Annotated[float, Field(ge=-100.0, le=100.0)],
    ],
}
_OTHER_NAMES = ("max_new_tokens", "top_logprobs", "choices")
"""Fields of `SamplingParams` that OpenAI's API spells in a way of its own, or does not have."""


def _sampling_fields() -> dict[str, Any]:
    """The fields of `SamplingParams` as optional JSON fields with their bounds."""
    types, json_fields = get_type_hints(SamplingParams), dict[str, Any]()
    for each in fields(SamplingParams):
        if each.name in _OTHER_NAMES:
            continue
        bounds = {key: each.metadata[key] for key in ("ge", "gt", "le") if key in each.metadata}
        kind: Any = _JSON_TYPES.get(each.name) or Annotated[types[each.name], Field(**bounds)]
        json_fields[each.name] = (
            kind | None,
            Field(None, description=each.metadata["description"]),
        )
    return json_fields


_Sampling: type[ModelRequest] = create_model(
    "_Sampling", __base__=ModelRequest, **_sampling_fields()
)


class GenerateRequest(_Sampling):
    """What `/v1/completions` and `/v1/chat/completions` have in common."""

    n: Annotated[int, Field(ge=1)] | None = Field(None, description="Texts per prompt.")
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    stream: bool | None = Field(None, description="Server-sent events rather than one answer.")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description=NO_EFFECT)
    metadata: dict[str, str] | None = Field(None, description=NO_EFFECT)
    store: bool | None = Field(None, description="Accepted; nothing is stored.")

    def sampling_params(self, *, max_new_tokens: int, top_logprobs: int | None) -> SamplingParams:
        """The sampling options; as in OpenAI's API, temperature is 1 by default."""
        names = [each.name for each in fields(SamplingParams) if each.name not in _OTHER_NAMES]
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        options["logit_bias"] = {
            int(token_id): bias for token_id, bias in options.get("logit_bias", {}).items()
        }
        return SamplingParams(
            **{"temperature": 1.0, **options},
            max_new_tokens=max_new_tokens,
            top_logprobs=top_logprobs,
        )


class CompletionRequest(GenerateRequest):
    """`POST /v1/completions`."""

    prompt: Prompt = Field(description=PROMPT_DESCRIPTION)
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Largest number of tokens to generate; 16 by default."
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
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, min_length=1)]
    name: str | None = Field(None, description=NO_EFFECT)
    refusal: None = None


class TextFormat(_Strict):
    """Plain text, the only supported format of an answer."""

    type: Literal["text"]


class ChatRequest(GenerateRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[
        list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS)
    ]
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Largest number of tokens to generate; the server's limit by default."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The newer name of max_tokens."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: TextFormat | None = None


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
