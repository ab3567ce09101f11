"""What requests look like; unknown fields and wrong types are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)


def _whole(text: str) -> str:
    """JSON can write half a character, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("should be text, but has half a character (a lone surrogate)") from None
    return text


def _prompts(value: Any) -> str | list[str] | list[int] | list[list[int]]:
    """Told apart here: a union would try every kind on each of perhaps a million ids."""
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, list) and 0 < len(value) <= _MOST:
        if all(type(each) is str for each in value):
            return [_whole(each) for each in value]
        if _are_ids(value) or all(type(each) is list and each and _are_ids(each) for each in value):
            return value
    raise ValueError(
        "should be a text, a list of texts, a list of token ids or a list of such lists, not "
        f"empty and of at most {_MOST}"
    )


def _are_ids(values: list[Any]) -> bool:
    return all(type(each) is int and 0 <= each <= _LARGEST_ID for each in values)


_MOST, _LARGEST_ID = 2**17, 2**31 - 1
_ID_SCHEMA = {"type": "integer", "minimum": 0, "maximum": _LARGEST_ID}
_IDS_SCHEMA = {"type": "array", "items": _ID_SCHEMA, "minItems": 1, "maxItems": _MOST}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": _MOST},
        _IDS_SCHEMA,
        {"type": "array", "items": _IDS_SCHEMA, "minItems": 1, "maxItems": _MOST},
    ]
}

Text = Annotated[str, AfterValidator(_whole)]
TokenId = Annotated[int, Field(ge=0, le=_LARGEST_ID)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Several = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=_MOST)]
Texts = Text | Several
Prompt = Annotated[Any, PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]


class Request(BaseModel):
    """A request to a model."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str = Field(description="The name of a model of /v1/models.")


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = Field(None, description="A last piece with the token counts.")
    include_obfuscation: bool | None = Field(None, description="Accepted, without effect.")


class Written(Request):
    """What `/v1/completions` and `/v1/chat/completions` have in common."""

    n: Annotated[int, Field(ge=1)] | None = Field(None, description="Texts for each prompt.")
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = Field(
        None, description="0 is greedy; 1 unless given."
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None, description="Only the k most probable tokens."
    )
    min_p: Probability | None = Field(
        None, description="Only tokens at least this share as probable as the best."
    )
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100.0)] | None = Field(
        None, description="Above 1: what the text has becomes less probable."
    )
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    logit_bias: (
        dict[
            Annotated[str, Field(pattern=r"^[0-9]{1,9}$")],
            Annotated[float, Field(ge=-100.0, le=100.0)],
        ]
        | None
    ) = Field(None, description="Added to the logit of a token id.")
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = Field(
        None, description="The same seed gives the same text; text i of several has seed + i."
    )
    stop: (
        Annotated[Text, Field(min_length=1)]
        | Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=16)]
        | None
    ) = Field(None, description="A text ends before any of these.")
    stream: bool | None = Field(None, description="Pieces as server-sent events.")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Accepted, without effect.")
    metadata: dict[str, str] | None = Field(None, description="Accepted, without effect.")
    store: bool | None = Field(None, description="Accepted; nothing is stored.")


class CompletionRequest(Written):
    """`POST /v1/completions`."""

    prompt: Prompt = Field(description="A text, texts, token ids, or lists of token ids.")
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Tokens to write at most; 16 unless given."
    )
    echo: bool | None = Field(None, description="Give the prompt back before what is written.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Log-probabilities of the tokens and of so many most probable ones."
    )
    best_of: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Only as large as n: nothing is drawn to be thrown away."
    )
    suffix: None = Field(None, description="Not supported.")


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """What somebody says in a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, min_length=1)]
    name: str | None = Field(None, description="Accepted, without effect.")
    refusal: None = None


class TextFormat(BaseModel):
    """Plain text, the only form of an answer there is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]


class ChatRequest(Written):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=_MOST)]
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Tokens to write at most; as many as the server allows unless given."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The newer name of max_tokens."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: TextFormat | None = None


class EmbeddingRequest(Request):
    """`POST /v1/embeddings`."""

    input: Prompt = Field(description="A text, texts, token ids, or lists of token ids.")
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Only the width that the model has."
    )
    pooling: Literal["first", "last", "mean"] | None = Field(
        None, description="Of all tokens, of the first or of the last; each model has its usual."
    )
    normalize: bool | None = Field(None, description="To length 1, unless false.")
    truncate: bool | None = Field(None, description="Cut what is too long, rather than refuse it.")
    user: str | None = Field(None, description="Accepted, without effect.")


class FillMaskRequest(Request):
    """`POST /v1/fill-mask`."""

    text: Texts = Field(description="One or several, with the mask of the model in each.")
    top_k: Annotated[int, Field(ge=1, le=100)] | None = Field(None, description="5 unless given.")


class ClassifyRequest(Request):
    """`POST /v1/classify`."""

    text: Texts
    pair: Texts | None = Field(None, description="As many second texts, for a model of pairs.")
    truncate: bool | None = Field(None, description="Cut what is too long, rather than refuse it.")


class TagRequest(Request):
    """`POST /v1/tag`."""

    text: (
        Text
        | Annotated[list[Text | Several], Field(fail_fast=True, min_length=1, max_length=_MOST)]
    ) = Field(description="One or several, as text with spaces or as lists of words.")


class AnswerRequest(Request):
    """`POST /v1/answer`."""

    question: Text
    context: Text
    top_k: Annotated[int, Field(ge=1, le=20)] | None = Field(None, description="1 unless given.")


class TranslateRequest(Request):
    """`POST /v1/translate`."""

    text: Texts
    num_beams: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="1 is greedy; what the model's settings say unless given, else 4."
    )
    length_penalty: Annotated[float, Field(ge=-10.0, le=10.0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="256 unless given.")


class ScoreRequest(Request):
    """`POST /v1/score`."""

    text: Texts
    given: Text | None = Field(
        None,
        description="Score the texts as what follows this; an encoder-decoder: as answers to it.",
    )


class TokenizeRequest(Request):
    """`POST /v1/tokenize`."""

    text: Texts
    add_special_tokens: bool | None = Field(None, description="True unless given.")


class DetokenizeRequest(Request):
    """`POST /v1/detokenize`."""

    ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=_MOST)]
    skip_special_tokens: bool | None = Field(None, description="True unless given.")


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


def as_list(value: str | list[Any]) -> list[Any]:
    """One or several, as several."""
    return [value] if isinstance(value, str) else value
