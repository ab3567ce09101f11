"""The table of endpoints; an endpoint without an entry does not exist.

Routing, the OpenAPI document, `/v1/models` and the playground's tabs are made from `ENDPOINTS`. An
endpoint is a request, a function and an entry of the table, all of them here; only generation has
a module of its own.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from trivium.inference.beam import BeamSearchOptions
from trivium.inference.embed import Pooling, embed_ids
from trivium.inference.score import encode_item, score_continuations, score_texts
from trivium.language_model import LanguageModel
from trivium.serve.api_error import ApiError
from trivium.serve.generation import chat_completions, completions
from trivium.serve.models import ModelRegistry, ServedModel, capabilities_of
from trivium.serve.replies import Reply, Usage
from trivium.serve.schemas import (
    MAX_ITEMS,
    NO_EFFECT,
    PROMPT_DESCRIPTION,
    ChatRequest,
    CompletionRequest,
    ModelRequest,
    Prompt,
    Text,
    TextList,
    Texts,
    TokenId,
    as_list,
)
from trivium.text.inputs import TextInput, encode_inputs

Json = dict[str, Any]

_TRANSLATION_TOKENS = 256
_TRUNCATE = "Cut texts that are too long rather than refuse them."


@dataclass(frozen=True)
class Endpoint:
    """One endpoint.

    Args:
        path: of the URL.
        schema: the body of a request.
        function: answers it; the first line of its docstring is the summary in the documents.
        capability: what the model must have, see `capabilities_of`.
        example: a request, without its model.
    """

    path: str
    schema: type[ModelRequest]
    function: Callable[[ServedModel, Any], Awaitable[Reply]]
    capability: str
    example: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return (self.function.__doc__ or "").partition("\n")[0].rstrip(".")

    def accepts(self, lm: LanguageModel) -> bool:
        """Whether a model can answer its requests."""
        return self.capability in capabilities_of(lm)

    async def answer(self, registry: ModelRegistry, request: ModelRequest) -> Reply:
        """The answer of the model that the request names, loaded first where it is not.

        Raises ApiError (400) where that model cannot answer it.
        """
        model = await registry.ready(request.model)
        if self.accepts(model.lm):
            return await self.function(model, request)
        if model.lm.tokenizer is None:
            raise ApiError(400, f"the model {model.name!r} has no tokenizer.", param="model")
        paths = [each.path for each in ENDPOINTS.values() if each.accepts(model.lm)]
        reason = ""
        if self.capability == "chat" and "generate" in model.lm.capabilities:
            reason = ": it has no chat template"
        raise ApiError(
            400,
            f"the model {model.name!r} cannot answer {self.path}{reason}; it can answer "
            f"{', '.join(paths)}.",
            param="model",
            code="model_cannot",
        )


def _list_reply(model: ServedModel, data: Sequence[Json], num_tokens: int) -> Reply:
    usage = Usage(num_tokens)
    model.metrics.tokens.labels(model.name, "prompt").inc(num_tokens)
    numbered = [{"index": index, **each} for index, each in enumerate(data)]
    body = {"object": "list", "model": model.name, "data": numbered, "usage": usage.body()}
    return Reply(body, usage)


async def _count_tokens(model: ServedModel, items: Sequence[str | Sequence[str]]) -> int:
    """Tokens of texts, pairs or lists of words, as the model's tokenizer reads them.

    Raises ApiError (400) for too many items, or one of more than `max_prompt` tokens.
    """
    model.scheduler.admit(len(items))
    tokenizer = model.lm.source_tokenizer
    texts = [[item] if isinstance(item, str) else list(item) for item in items]

    def count() -> list[int]:
        ids = iter(tokenizer.encode_ids_batch([part for parts in texts for part in parts]))
        return [sum(len(next(ids)) for _ in parts) for parts in texts]

    counts = await asyncio.to_thread(count)
    _check_length(max(counts), model.limits.max_prompt)
    return sum(counts)


def _check_length(length: int, most: int, hint: str = "shorten it") -> None:
    if length > most:
        raise ApiError(
            400,
            f"a text has {length} tokens, but at most {most} are allowed: {hint}.",
            code="context_length_exceeded",
        )


async def _read_texts(
    model: ServedModel, texts: Sequence[tuple[str, str | None]], truncate: bool | None
) -> list[TextInput]:
    """Texts or pairs as a model reads them; with `truncate` what is too long is cut.

    Raises ApiError (400) for too many texts, and without `truncate` for one that is too long.
    """
    model.scheduler.admit(len(texts))
    limits, lm = model.limits, model.lm
    longest = min(limits.max_prompt, lm.max_length or limits.max_prompt)
    as_documents = lm.settings.task == "classification" or lm.spec.family != "decoder-only"
    inputs = await asyncio.to_thread(
        encode_inputs, lm.source_tokenizer, texts, max_length=longest, as_documents=as_documents
    )
    if not truncate:
        length = max(len(each.ids) + each.cut for each in inputs)
        _check_length(length, longest, "shorten it, or set truncate")
    return inputs


class EmbeddingRequest(ModelRequest):
    """`POST /v1/embeddings`."""

    input: Prompt = Field(description=PROMPT_DESCRIPTION)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Only the width of the model."
    )
    pooling: Literal["first", "last", "mean"] | None = Field(
        None, description="Over token vectors; by default the last of a decoder, else the mean."
    )
    normalize: bool | None = Field(None, description="Scale to length 1; true by default.")
    truncate: bool | None = Field(None, description=_TRUNCATE)
    user: str | None = Field(None, description=NO_EFFECT)


async def embeddings(model: ServedModel, request: EmbeddingRequest) -> Reply:
    """Embed texts as vectors."""
    lm = model.lm
    if request.dimensions not in (None, lm.spec.d_model):
        message = f"the vectors of this model have {lm.spec.d_model} dimensions."
        raise ApiError(400, message, param="dimensions")
    texts = as_list(request.input)
    if not all(texts):
        raise ApiError(400, "an input is empty.", param="input")
    if isinstance(texts[0], str):
        inputs = await _read_texts(model, [(text, None) for text in texts], request.truncate)
        rows = [each.ids for each in inputs]
    else:
        rows = texts
        _check_length(max(map(len, rows)), lm.max_length or model.limits.max_prompt)
        if (largest := max(map(max, rows))) >= (end := lm.source_tokenizer.vocab_size):
            message = f"the input has id {largest}, but ids end at {end}."
            raise ApiError(400, message, param="input")
    default: Pooling = "last" if lm.spec.family == "decoder-only" else "mean"
    normalize = request.normalize is not False
    vectors = await model.scheduler.call(
        _embed, rows, pooling=request.pooling or default, normalize=normalize
    )
    usage = Usage(sum(map(len, rows)))
    model.metrics.tokens.labels(model.name, "prompt").inc(usage.prompt_tokens)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
            if request.encoding_format == "base64"
            else vector.tolist(),
        }
        for index, vector in enumerate(vectors)
    ]
    counts = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    body = {"object": "list", "data": data, "model": model.name, "usage": counts}
    return Reply(body, usage)


def _embed(
    lm: LanguageModel, rows: Sequence[list[int]], *, pooling: Pooling, normalize: bool
) -> list[Any]:
    vectors = embed_ids(lm, rows, pooling=pooling, normalize=normalize)
    return list(vectors.cpu().numpy())


class FillMaskRequest(ModelRequest):
    """`POST /v1/fill-mask`."""

    text: Texts = Field(description="One or several, each with [MASK] or <mask>.")
    top_k: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Predictions per mask; 5 by default."
    )


async def fill_mask(model: ServedModel, request: FillMaskRequest) -> Reply:
    """Predict masked tokens, for every mask the most probable first."""
    texts = as_list(request.text)
    num_tokens = await _count_tokens(model, texts)
    data = await model.scheduler.call(_fill_mask, texts, top_k=request.top_k or 5)
    return _list_reply(model, data, num_tokens)


def _fill_mask(lm: LanguageModel, texts: Sequence[str], *, top_k: int) -> list[Json]:
    predictions: list[Json] = []
    for text in texts:
        fills = lm.fill_mask(text, top_k=top_k)
        masks = fills if isinstance(fills[0], list) else [fills]
        predictions.append(
            {"masks": [[dataclasses.asdict(fill) for fill in mask] for mask in masks]}
        )
    return predictions


class ClassifyRequest(ModelRequest):
    """`POST /v1/classify`."""

    text: Texts
    pair: Texts | None = Field(None, description="As many second texts, for a model of pairs.")
    truncate: bool | None = Field(None, description=_TRUNCATE)


async def classify(model: ServedModel, request: ClassifyRequest) -> Reply:
    """Classify texts or pairs, with the probabilities of all labels."""
    texts = as_list(request.text)
    pairs = [None] * len(texts) if request.pair is None else as_list(request.pair)
    if len(pairs) != len(texts):
        message = f"there are {len(texts)} texts and {len(pairs)} second texts: give equally many."
        raise ApiError(400, message, param="pair")
    items = list(zip(texts, pairs))
    inputs = await _read_texts(model, items, request.truncate)
    data = await model.scheduler.call(_classify, items)
    return _list_reply(model, data, sum(len(each.ids) for each in inputs))


def _classify(lm: LanguageModel, pairs: Sequence[tuple[str, str | None]]) -> list[Json]:
    with warnings.catch_warnings():  # of texts that are cut, which the request allowed
        warnings.simplefilter("ignore")
        return [dataclasses.asdict(each) for each in lm.classify(list(pairs))]


class TagRequest(ModelRequest):
    """`POST /v1/tag`."""

    text: (
        Text
        | Annotated[
            list[Text | TextList], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS)
        ]
    ) = Field(description="One or several sentences, words separated by spaces or as lists.")


async def tag(model: ServedModel, request: TagRequest) -> Reply:
    """Tag words (named entities, parts of speech)."""
    sentences = [text.split() if isinstance(text, str) else text for text in as_list(request.text)]
    if not all(words and all(words) for words in sentences):
        raise ApiError(400, "a text has no words, or an empty one.", param="text")
    num_tokens = await _count_tokens(model, sentences)
    data = await model.scheduler.call(_tag, sentences)
    return _list_reply(model, data, num_tokens)


def _tag(lm: LanguageModel, sentences: Sequence[list[str]]) -> list[Json]:
    tagged = lm.tag(list(sentences))
    return [{"words": [dataclasses.asdict(word) for word in words]} for words in tagged]


class AnswerRequest(ModelRequest):
    """`POST /v1/answer`."""

    question: Text
    context: Text
    top_k: Annotated[int, Field(ge=1, le=20)] | None = Field(
        None, description="Answers; 1 by default."
    )


async def answer(model: ServedModel, request: AnswerRequest) -> Reply:
    """Answer a question with spans of a context, best first."""
    longest = (model.lm.max_length or model.limits.max_prompt) // 4
    (question,) = await asyncio.to_thread(
        model.lm.source_tokenizer.encode_ids_batch, [request.question]
    )
    if len(question) > longest:
        raise ApiError(
            400,
            f"the question has {len(question)} tokens, but at most {longest} leave room for its "
            "context: shorten it.",
            param="question",
        )
    items = [(request.question, request.context)]
    num_tokens = await _count_tokens(model, items)
    data = await model.scheduler.call(_answer, items, top_k=request.top_k or 1)
    return _list_reply(model, data, num_tokens)


def _answer(lm: LanguageModel, items: Sequence[tuple[str, str]], *, top_k: int) -> list[Json]:
    return [
        {
            "answers": [
                dataclasses.asdict(span) for span in lm.answer(question, context, top_k=top_k)
            ]
        }
        for question, context in items
    ]


class TranslateRequest(ModelRequest):
    """`POST /v1/translate`."""

    text: Texts
    num_beams: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="1 is greedy; the model's own setting by default."
    )
    length_penalty: Annotated[float, Field(ge=-10.0, le=10.0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Largest number of tokens to generate; 256 by default."
    )


async def translate(model: ServedModel, request: TranslateRequest) -> Reply:
    """Translate, or map texts to texts by any encoder-decoder, with beam search."""
    limits = model.limits
    max_tokens = request.max_tokens or min(_TRANSLATION_TOKENS, limits.max_tokens)
    if max_tokens > limits.max_tokens:
        message = f"max_tokens is {max_tokens}, but the server generates {limits.max_tokens}."
        raise ApiError(400, message, param="max_tokens")
    texts = as_list(request.text)
    num_tokens = await _count_tokens(model, texts)
    data = await model.scheduler.call(
        _translate,
        texts,
        num_beams=request.num_beams,
        length_penalty=request.length_penalty,
        max_new_tokens=max_tokens,
    )
    return _list_reply(model, data, num_tokens)


def _translate(
    lm: LanguageModel,
    texts: Sequence[str],
    *,
    num_beams: int | None,
    length_penalty: float | None,
    max_new_tokens: int,
) -> list[Json]:
    options: BeamSearchOptions = {}
    if num_beams is not None:
        options["num_beams"] = num_beams
    if length_penalty is not None:
        options["length_penalty"] = length_penalty
    targets = lm.translate(list(texts), max_new_tokens=max_new_tokens, **options)
    return [{"text": text} for text in targets]


class ScoreRequest(ModelRequest):
    """`POST /v1/score`."""

    text: Texts
    context: Text | None = Field(
        None,
        description="Score the texts as continuations of it; an encoder-decoder needs it, and "
        "reads it with its encoder.",
    )


async def score(model: ServedModel, request: ScoreRequest) -> Reply:
    """Score texts by log-probability in nats, alone or as continuations of a context."""
    items = [(request.context, text) for text in as_list(request.text)]
    if request.context is None and model.lm.spec.family == "encoder-decoder":
        message = "this model scores a text as the output for what its encoder reads: set context."
        raise ApiError(400, message, param="context")
    texts = [text if context is None else (context, text) for context, text in items]
    num_tokens = await _count_tokens(model, texts)
    data = await model.scheduler.call(_score, items)
    return _list_reply(model, data, num_tokens)


def _score(lm: LanguageModel, items: Sequence[tuple[str | None, str]]) -> list[Json]:
    both, tokenizer = lm.spec.family == "encoder-decoder", lm.text_tokenizer
    source_tokenizer = lm.source_tokenizer if both else None
    scores: list[Json] = []
    for context, text in items:
        if context is None:
            (score,) = score_texts(lm, [text])
        else:
            item = encode_item(tokenizer, context, [text], source_tokenizer=source_tokenizer)
            score = score_continuations(lm, [item])[0][0]
        tokens = [
            {"token": tokenizer.readable_tokens[token_id], "id": token_id, "log_probability": value}
            for token_id, value in zip(score.ids, score.log_probabilities, strict=True)
        ]
        scores.append(
            {
                "log_probability": score.total,
                "num_tokens": score.num_tokens,
                "greedy": score.greedy,
                "tokens": tokens,
            }
        )
    return scores


class TokenizeRequest(ModelRequest):
    """`POST /v1/tokenize`."""

    text: Texts
    add_special_tokens: bool | None = Field(None, description="True by default.")


async def tokenize(model: ServedModel, request: TokenizeRequest) -> Reply:
    """Encode texts as tokens, with their offsets in characters."""
    encodings = await asyncio.to_thread(
        model.lm.text_tokenizer.encode_batch,
        as_list(request.text),
        add_special_tokens=request.add_special_tokens is not False,
    )
    data = [
        {
            "index": index,
            "ids": list(each.ids),
            "tokens": list(each.tokens),
            "offsets": [list(pair) for pair in each.offsets],
            "count": len(each.ids),
        }
        for index, each in enumerate(encodings)
    ]
    usage = Usage(sum(len(each.ids) for each in encodings))
    return Reply({"object": "list", "model": model.name, "data": data}, usage)


class DetokenizeRequest(ModelRequest):
    """`POST /v1/detokenize`."""

    ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_ITEMS)]
    skip_special_tokens: bool | None = Field(None, description="True by default.")


async def detokenize(model: ServedModel, request: DetokenizeRequest) -> Reply:
    """Decode token ids."""
    tokenizer = model.lm.text_tokenizer
    if (largest := max(request.ids, default=0)) >= tokenizer.vocab_size:
        message = f"ids has {largest}, but ids end at {tokenizer.vocab_size}."
        raise ApiError(400, message, param="ids")
    text = await asyncio.to_thread(
        tokenizer.decode, request.ids, skip_special_tokens=request.skip_special_tokens is not False
    )
    return Reply({"object": "text", "model": model.name, "text": text}, Usage(len(request.ids)))


_SENTENCE = "The weather was cloudy yesterday."
_CHAT = [{"role": "user", "content": "How is the weather?"}]
_CONTEXT = "Ada Lovelace lived in London."

_TABLE = (
    Endpoint(
        "/v1/completions",
        CompletionRequest,
        completions,
        "generate",
        {"prompt": "The weather was", "max_tokens": 16, "temperature": 0},
    ),
    Endpoint(
        "/v1/chat/completions",
        ChatRequest,
        chat_completions,
        "chat",
        {"messages": _CHAT, "max_tokens": 16},
    ),
    Endpoint("/v1/embeddings", EmbeddingRequest, embeddings, "embed", {"input": [_SENTENCE]}),
    Endpoint(
        "/v1/fill-mask",
        FillMaskRequest,
        fill_mask,
        "fill_mask",
        {"text": "The [MASK] was cloudy yesterday.", "top_k": 3},
    ),
    Endpoint("/v1/classify", ClassifyRequest, classify, "classify", {"text": _SENTENCE}),
    Endpoint("/v1/tag", TagRequest, tag, "tag", {"text": "Ada Lovelace lived in London ."}),
    Endpoint(
        "/v1/answer",
        AnswerRequest,
        answer,
        "answer",
        {"question": "Where did she live?", "context": _CONTEXT},
    ),
    Endpoint(
        "/v1/translate",
        TranslateRequest,
        translate,
        "translate",
        {"text": _SENTENCE, "max_tokens": 32},
    ),
    Endpoint(
        "/v1/score",
        ScoreRequest,
        score,
        "score",
        {"context": "The weather", "text": " was cloudy."},
    ),
    Endpoint("/v1/tokenize", TokenizeRequest, tokenize, "tokenize", {"text": _SENTENCE}),
    Endpoint("/v1/detokenize", DetokenizeRequest, detokenize, "tokenize", {"ids": [5, 6, 7]}),
)
ENDPOINTS = {endpoint.path: endpoint for endpoint in _TABLE}
"""Path -> endpoint."""
