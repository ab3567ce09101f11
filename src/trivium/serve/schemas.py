"""Base classes of all request bodies, and the request body of `/v1/completions`.

Unknown fields and values of the wrong type are rejected.
"""

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
PROMPT_DESCRIPTION = "A text, a list of texts, a list of token ids, or several lists of token ids."

NO_EFFECT = "Accepted for compatibility with OpenAI's API, but has no effect."
NOT_SUPPORTED = "Not supported"
NEUTRAL = f"{NOT_SUPPORTED}. Only values that do not request this feature are accepted."


class StrictModel(BaseModel):
    """Base class of request schemas. Rejects unknown fields and values of the wrong type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelRequest(StrictModel):
    """The fields that all request bodies contain."""

    model: str = Field(description="The id of the model, as listed by /v1/models.")
    special_tokens: SpecialTokens | None = Field(
        None,
        description="Whether the name of a special token in a text, such as [SEP], is read as "
        "plain text or as the special token. The default is special for prompts of /v1/completions "
        "and for /v1/tokenize, and text elsewhere (except [MASK] in /v1/fill-mask).",
    )


class StreamOptions(StrictModel):
    """The options of a streamed response."""

    include_usage: bool | None = Field(
        None, description="Send an extra chunk with the token counts at the end."
    )
    include_obfuscation: bool | None = Field(None, description=NO_EFFECT)


# Sampling options whose type in JSON differs from the type in `SamplingParams`.
_JSON_TYPES: dict[str, Any] = {
    "seed": Annotated[int, Field(ge=-(2**63), le=2**63 - 1)],
    "stop": NonEmptyText | Annotated[list[NonEmptyText], Field(max_length=16)],
    "logit_bias": dict[
        Annotated[int, Field(strict=False, ge=0)], Annotated[float, Field(ge=-100.0, le=100.0)]
    ],
}
_OMITTED_FIELDS = (
    *("max_new_tokens", "top_logprobs"),
    *("choices", "json_schema", "regex", "grammar"),
)
"""Fields of `SamplingParams` that have another name in OpenAI's API, or do not exist there."""


def _make_sampling_fields() -> dict[str, Any]:
    """Convert the fields of `SamplingParams` to optional pydantic fields with the same bounds.

    Returns a dict of field name -> definition for `pydantic.create_model`.
    """
    types, json_fields = get_type_hints(SamplingParams), dict[str, Any]()
    for each in fields(SamplingParams):
        if each.name not in _OMITTED_FIELDS:
            metadata = dict(each.metadata)
            description = metadata.pop("description")
            kind: Any = _JSON_TYPES.get(each.name) or Annotated[types[each.name], Field(**metadata)]
            json_fields[each.name] = (kind | None, Field(None, description=description))
    return json_fields


_SAMPLING_FIELDS = _make_sampling_fields()
_Sampling: type[ModelRequest] = create_model("_Sampling", __base__=ModelRequest, **_SAMPLING_FIELDS)


class JsonSchema(StrictModel):
    """A JSON schema with its name, as in OpenAI's API."""

    name: Text = Field(description="The name of the schema, which has no effect.")
    schema_: dict[str, Any] = Field(alias="schema", description="The JSON schema.")
    description: Text | None = Field(None, description=NO_EFFECT)
    strict: bool | None = Field(
        None, description="Accepted without effect: the text always follows the schema."
    )


class ResponseFormat(StrictModel):
    """The format of generated text: plain text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = Field(
        None, description="The schema, if the type is json_schema."
    )


class StructuredOutputs(StrictModel):
    """A constraint on the generated text, as in vLLM's `structured_outputs`.

    Only one field may be set.
    """

    json_: dict[str, Any] | None = Field(
        None, alias="json", description="A JSON schema that the text follows; {} allows any JSON."
    )
    regex: Text | None = Field(None, description="A regular expression that matches the text.")
    choice: Annotated[list[NonEmptyText], ITEMS] | None = Field(
        None, description="The only texts that may be generated."
    )
    grammar: Text | None = Field(
        None,
        description="A grammar that the text follows, in llguidance's variant of the syntax of "
        "Lark.",
    )


class GenerateRequest(_Sampling):
    """The fields that the bodies of `/v1/completions` and `/v1/chat/completions` have in common."""

    n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Number of texts to generate per prompt."
    )
    stream: bool | None = Field(
        None, description="Whether to send the text in server-sent events while it is generated."
    )
    stream_options: StreamOptions | None = Field(
        None, description="Options of the stream; only allowed if stream is true."
    )
    response_format: ResponseFormat | None = Field(
        None, description="Whether the text is JSON, and the schema that it follows."
    )
    structured_outputs: StructuredOutputs | None = Field(
        None,
        description="A JSON schema, a regular expression, a list of choices or a grammar that the "
        "text follows, as in vLLM.",
    )
    user: str | None = Field(None, description=NO_EFFECT)
    metadata: dict[str, str] | None = Field(None, description=NO_EFFECT)
    store: bool | None = Field(None, description="Accepted, but nothing is stored.")
    service_tier: str | None = Field(None, description=NO_EFFECT)
    safety_identifier: str | None = Field(None, description=NO_EFFECT)
    prompt_cache_key: str | None = Field(None, description=NO_EFFECT)

    def get_sampling_options(
        self, *, max_new_tokens: int, top_logprobs: int | None
    ) -> dict[str, Any]:
        """Return the sampling options that the request sets, as a dict of `SamplingParams` fields.

        `max_new_tokens` and `top_logprobs` are added to the dict.
        """
        options = self.model_dump(include={*_SAMPLING_FIELDS}, exclude_none=True)
        if "seed" in options:
            options["seed"] %= 2**63  # Seeds of OpenAI's API may be negative.
        return {**options, "max_new_tokens": max_new_tokens, "top_logprobs": top_logprobs}


class CompletionRequest(GenerateRequest):
    """The request body of `POST /v1/completions`."""

    prompt: Prompt = Field(description=PROMPT_DESCRIPTION)
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Maximum number of tokens to generate, limited by the server; default: 16.",
    )
    echo: bool | None = Field(None, description="Whether the returned text starts with the prompt.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None,
        description="Return the log-probability of each token, and this number of most probable "
        "tokens at each position.",
    )
    best_of: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Only the value of n is accepted."
    )
    suffix: Text | None = Field(
        None,
        description="The text after the generated text, which then fills the gap; for models that "
        "were trained to fill in the middle.",
    )


class ErrorDetail(BaseModel):
    """The description of an error in an error response."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The JSON body of every error response."""

    error: ErrorDetail


def as_list(value: Any) -> list[Any]:
    """Wrap a single text or a single list of token ids in a list.

    Returns a list of texts, or a list of lists of token ids, unchanged.
    """
    one = isinstance(value, str) or (bool(value) and isinstance(value[0], int))
    return [value] if one else list(value)
