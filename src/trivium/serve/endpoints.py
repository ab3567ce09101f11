"""The table of endpoints; an endpoint without an entry does not exist.

Routes, the OpenAPI document and `/v1/models` are made from `ENDPOINTS`. An endpoint is a request, a
function and an entry of the table; the function and the request of completions and chat are in
`generation.py` and `schemas.py`, those of the others here.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import to_jsonable_python

from trivium.inference.embed import embed_windows
from trivium.inference.score import score_text
from trivium.inference.tag import merge_entities
from trivium.language_model import LanguageModel
from trivium.models.heads.text import Pooling
from trivium.serve.api_error import ApiError
from trivium.serve.generation import (
    chat_completions,
    check_count,
    check_ids,
    check_length,
    completions,
    longest_prompt,
)
from trivium.serve.model_thread import Function
from trivium.serve.models import ModelRegistry, ServedModel
from trivium.serve.replies import Json, Reply, Usage
from trivium.serve.schemas import (
    ITEMS,
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
from trivium.text import Tokenizer
from trivium.text.inputs import TextInput, encode_inputs, join_words

_SOURCE = "Of two tokenizers that of sources, which the encoder reads; false: that of targets."
_TRUNCATE = "Cut texts that are too long rather than refuse them."


@dataclass(frozen=True)
class Endpoint:
    """One endpoint.

    Args:
        path: of the URL.
        schema: the body of a request.
        function: answers it; the first line of its docstring is the summary in the documents.
        capability: what the model must have: one of its own, the task that it was fine-tuned for,
            "chat" (a chat template) or "tokenize".
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
        """Whether a model can answer its requests; one without a tokenizer answers nothing."""
        able = {*lm.capabilities, lm.settings.task, "tokenize"}
        if "generate" in able and lm.settings.chat_template:
            able.add("chat")
        return lm.tokenizer is not None and self.capability in able

    async def respond(self, registry: ModelRegistry, request: ModelRequest) -> Reply:
        """The reply of the model that the request names, loaded first where it is not.

        Raises ApiError (400) where that model cannot answer it.
        """
        model = await registry.ready(request.model)
        if self.accepts(model.lm):
            with model.in_use():
                return await self.function(model.reading(request.special_tokens), request)
        paths = [each.path for each in ENDPOINTS.values() if each.accepts(model.lm)]
        no_template = self.capability == "chat" and "generate" in model.lm.capabilities
        reason = ": it has no chat template" if no_template else ""
        raise ApiError(
            400,
            f"the model {model.name!r} cannot answer {self.path}{reason}; it can answer "
            f"{', '.join(paths) or 'nothing without a tokenizer'}.",
            param="model",
            code="model_cannot",
        )


async def _list_reply(
    model: ServedModel, num_tokens: int, function: Function, items: Sequence[Any], **options: Any
) -> Reply:
    """What `function(lm, items, **options)` gives for every item, numbered."""
    data = await model.thread.call(
        function, items, num_tokens, special_tokens=model.special_tokens, **options
    )
    return _list_of(model, data, Usage(num_tokens))


def _list_of(model: ServedModel, data: Sequence[Any], usage: Usage) -> Reply:
    """Numbered results: objects whose values may be dataclasses, or dataclasses."""
    counts = {"prompt": usage.prompt_tokens, "generated": usage.completion_tokens}
    for kind, count in counts.items():
        model.metrics.tokens.labels(model.name, kind).inc(count)
    numbered = [{"index": index, **each} for index, each in enumerate(to_jsonable_python(data))]
    body = {"object": "list", "model": model.name, "data": numbered, "usage": usage.body()}
    return Reply(body, usage)


async def _count_tokens(
    model: ServedModel, items: Sequence[str | Sequence[str]], most: int | None = None
) -> int:
    """The number of tokens of texts, pairs or lists of words, where none is too long.

    Raises ApiError (400) for too many items, or one of more than `most` tokens, by default
    `max_prompt`.
    """
    check_count(len(items), model.limits)
    encode = model.lm.source_tokenizer.encode_ids_batch
    texts = [[item] if isinstance(item, str) else item for item in items]
    counts = await asyncio.to_thread(lambda: [sum(map(len, encode(parts))) for parts in texts])
    check_length("text", max(counts), most or model.limits.max_prompt)
    return sum(counts)


def _longest_text(model: ServedModel) -> int:
    return min(model.limits.max_prompt, model.lm.max_length or model.limits.max_prompt)


async def _encode_texts(
    model: ServedModel, texts: Sequence[tuple[str, str | None]], *, truncate: bool
) -> list[TextInput]:
    """Texts or pairs as a model reads them; with `truncate` what is too long is cut.

    Raises ApiError (400) for too many texts or, without `truncate`, one that is too long.
    """
    check_count(len(texts), model.limits)
    lm, longest = model.lm, _longest_text(model)
    inputs = await asyncio.to_thread(
        encode_inputs,
        lm.source_tokenizer,
        texts,
        max_length=longest,
        as_documents=lm.uses_document_tokens,
    )
    if not truncate:
        length = max(len(each.ids) + each.cut for each in inputs)
        check_length("text", length, longest, "shorten it, or set truncate")
    return inputs


class EmbeddingRequest(ModelRequest):
    """`POST /v1/embeddings`."""

    input: Prompt = Field(description=PROMPT_DESCRIPTION)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Only the width of the model."
    )
    pooling: Pooling | None = Field(
        None, description="Over token vectors; by default as the model was trained, else the mean."
    )
    normalize: bool | None = Field(None, description="Scale to length 1; null: as the model does.")
    truncate: bool = Field(False, description="Cut long texts rather than read them in windows.")
    user: str | None = Field(None, description=NO_EFFECT)


async def embeddings(model: ServedModel, request: EmbeddingRequest) -> Reply:
    """Embed texts as vectors."""
    lm = model.lm
    if request.dimensions not in (None, lm.vector_size):
        have = f"the vectors of this model have {lm.vector_size}"
        message = f"dimensions is {request.dimensions}, but {have}."
        raise ApiError(400, message, param="dimensions")
    texts = as_list(request.input)
    if not all(texts):
        raise ApiError(400, "an input is empty.", param="input")
    if not isinstance(texts[0], str):
        check_count(len(texts), model.limits)
        check_length("input", max(map(len, texts)), _longest_text(model))
        check_ids("input", [max(row) for row in texts], lm.source_tokenizer)
        windows = [[TextInput(row, [0] * len(row), [], [])] for row in texts]
    elif request.truncate:
        check_count(len(texts), model.limits)
        windows = await asyncio.to_thread(
            lm.embedding_windows, texts, max_length=_longest_text(model)
        )
    else:
        await _count_tokens(model, texts)
        windows = await asyncio.to_thread(lm.embedding_windows, texts)
    return await _list_reply(
        model,
        sum(len(window.ids) for each in windows for window in each),
        _embed,
        windows,
        pooling=request.pooling,
        normalize=request.normalize,
        base64=request.encoding_format == "base64",
    )


def _embed(
    lm: LanguageModel,
    windows: Sequence[list[TextInput]],
    *,
    pooling: Pooling | None,
    normalize: bool | None,
    base64: bool,
) -> list[Json]:
    vectors = embed_windows(lm, windows, pooling=pooling, normalize=normalize)
    return [
        {
            "object": "embedding",
            "embedding": b64encode(vector.tobytes()).decode() if base64 else vector.tolist(),
        }
        for vector in vectors.numpy().astype("<f4")
    ]


class FillMaskRequest(ModelRequest):
    """`POST /v1/fill-mask`."""

    text: Texts = Field(description="One or several, each with [MASK] or <mask>.")
    top_k: int = Field(
        5,
        ge=1,
        le=100,
        description="Predictions per mask; of T5 and BART, for all masks together; of GLM one.",
    )


async def fill_mask(model: ServedModel, request: FillMaskRequest) -> Reply:
    """Predict masked tokens, for every mask the most probable first."""
    texts = as_list(request.text)
    around = model.lm.source_template.num_special(paired=False)
    num_tokens = await _count_tokens(model, texts) + around * len(texts)
    return await _list_reply(model, num_tokens, _fill_mask, texts, top_k=request.top_k)


def _fill_mask(lm: LanguageModel, texts: Sequence[str], *, top_k: int) -> list[Json]:
    fills = [lm.fill_mask(text, top_k=top_k) for text in texts]
    return [{"masks": each if isinstance(each[0], list) else [each]} for each in fills]


class ClassifyRequest(ModelRequest):
    """`POST /v1/classify`."""

    text: Texts
    pair: Texts | None = Field(None, description="As many second texts, for a model of pairs.")
    truncate: bool = Field(False, description=_TRUNCATE)


async def classify(model: ServedModel, request: ClassifyRequest) -> Reply:
    """Classify texts or pairs, with the probabilities of all labels."""
    texts = as_list(request.text)
    pairs = [None] * len(texts) if request.pair is None else as_list(request.pair)
    if len(pairs) != len(texts):
        message = f"there are {len(texts)} texts and {len(pairs)} second texts: give equally many."
        raise ApiError(400, message, param="pair")
    items = list(zip(texts, pairs))
    inputs = await _encode_texts(model, items, truncate=request.truncate)
    num_tokens = sum(len(each.ids) for each in inputs)
    return await _list_reply(model, num_tokens, LanguageModel.classify, items)


class TagRequest(ModelRequest):
    """`POST /v1/tag`."""

    text: Text | Annotated[list[Text | TextList], ITEMS] = Field(
        description="One or several texts, or sentences as lists of words."
    )


async def tag(model: ServedModel, request: TagRequest) -> Reply:
    """Tag words (parts of speech), and merge tags of words to named entities."""
    texts = as_list(request.text)
    if not all(text.strip() if isinstance(text, str) else text and all(text) for text in texts):
        raise ApiError(400, "a text has no words, or an empty one.", param="text")
    num_tokens = await _count_tokens(model, texts)
    return await _list_reply(model, num_tokens, _tag, texts)


def _tag(lm: LanguageModel, texts: list[str | Sequence[str]]) -> list[Json]:
    results: list[Json] = []
    for text, words in zip(texts, lm.tag(texts)):
        joined = text if isinstance(text, str) else join_words(text)[0]
        results.append({"words": words, "entities": merge_entities(words, joined)})
    return results


class AnswerRequest(ModelRequest):
    """`POST /v1/answer`."""

    question: Text
    context: Text
    top_k: int = Field(1, ge=1, le=20, description="Answers.")


async def answer(model: ServedModel, request: AnswerRequest) -> Reply:
    """Answer a question with spans of a context, best first."""
    longest = _longest_text(model) // 4
    in_question = await _count_tokens(model, [request.question])
    hint = "shorten it, to leave room for its context"
    check_length("question", in_question, longest, hint)
    in_context = await _count_tokens(model, [request.context])
    items = [(request.question, request.context)]
    return await _list_reply(model, in_question + in_context, _answer, items, top_k=request.top_k)


def _answer(lm: LanguageModel, items: Sequence[tuple[str, str]], *, top_k: int) -> list[Json]:
    return [{"answers": spans} for spans in lm.answer_all(items, top_k=top_k)]


class TranslateRequest(ModelRequest):
    """`POST /v1/translate`."""

    text: Texts
    num_beams: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="1 is greedy; the model's own setting by default."
    )
    length_penalty: Annotated[float, Field(ge=-10.0, le=10.0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Largest number of tokens to generate, at most the server's limit; by default "
        "the model's own, or twice the tokens of the source and 16, at most 256.",
    )


async def translate(model: ServedModel, request: TranslateRequest) -> Reply:
    """Translate, or map texts to texts by any encoder-decoder, with beam search."""
    texts = as_list(request.text)
    num_tokens = await _count_tokens(model, texts)
    options = request.model_dump(include={"num_beams", "length_penalty"}, exclude_none=True)
    options |= {"max_tokens": request.max_tokens, "most": model.limits.max_tokens}
    options["special_tokens"] = model.special_tokens
    targets = await model.thread.call(_translate, texts, num_tokens, **options)
    encoded = await asyncio.to_thread(model.lm.text_tokenizer.encode_ids_batch, targets)
    data = [{"text": target} for target in targets]
    return _list_of(model, data, Usage(num_tokens, sum(map(len, encoded))))


def _translate(
    lm: LanguageModel, texts: Sequence[str], *, max_tokens: int | None, most: int, **options: Any
) -> list[str]:
    """Translate with the limits of `LanguageModel.translate` where they are within the server's."""
    if max_tokens is not None:
        return lm.translate([*texts], max_new_tokens=min(max_tokens, most), **options)
    too_long = [lm.target_limit(ids) > most for ids in lm.prompts(texts)]
    targets: dict[int, str] = {}
    for limit in (None, most):
        indices = [i for i, each in enumerate(too_long) if each == (limit is not None)]
        if indices:
            several = [texts[i] for i in indices]
            targets |= zip(indices, lm.translate(several, max_new_tokens=limit, **options))
    return [targets[i] for i in range(len(texts))]


class ScoreRequest(ModelRequest):
    """`POST /v1/score`."""

    text: Texts
    context: Text | None = Field(
        None,
        description="What the texts continue: context and text are tokenized as one string, and no "
        "space is added between them. An encoder-decoder reads the context with its encoder. The "
        "start of a context that is too long is cut, by `num_cut` tokens.",
    )


async def score(model: ServedModel, request: ScoreRequest) -> Reply:
    """Score texts by log-probability in nats, alone or as continuations of a context."""
    texts, context = as_list(request.text), request.context
    if context is None and model.lm.spec.family == "encoder-decoder":
        message = "this model scores a text as the output for what its encoder reads: set context."
        raise ApiError(400, message, param="context")
    # Where positions have no end, memory has: that of a prompt.
    most = None if model.lm.context_length else longest_prompt(model.lm, model.limits)[0]
    num_tokens = await _count_tokens(model, [(context or "", text) for text in texts], most)
    return await _list_reply(model, num_tokens, _score, texts, context=context)


def _score(lm: LanguageModel, texts: Sequence[str], *, context: str | None) -> list[Json]:
    tokenizer = lm.text_tokenizer
    results: list[Json] = []
    for text in texts:
        score = score_text(lm, text, context)
        tokens = [
            {"token": tokenizer.readable_tokens[token_id], "id": token_id, "log_probability": value}
            for token_id, value in zip(score.ids, score.log_probabilities, strict=True)
        ]
        counts = {"num_tokens": score.num_tokens, "num_cut": score.num_cut, "greedy": score.greedy}
        results.append({"log_probability": score.total, **counts, "tokens": tokens})
    return results


class TokenizeRequest(ModelRequest):
    """`POST /v1/tokenize`."""

    text: Texts
    add_special_tokens: bool = True
    source: bool = Field(True, description=_SOURCE)


async def tokenize(model: ServedModel, request: TokenizeRequest) -> Reply:
    """Encode texts as tokens, with their offsets in characters."""
    tokenizer = _tokenizer(model, request)
    encodings = await asyncio.to_thread(
        tokenizer.encode_batch, as_list(request.text), add_special_tokens=request.add_special_tokens
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

    ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=2**17)]
    skip_special_tokens: bool = True
    source: bool = Field(True, description=_SOURCE)


def _tokenizer(model: ServedModel, request: TokenizeRequest | DetokenizeRequest) -> Tokenizer:
    lm = model.lm.prompting
    return lm.source_tokenizer if request.source else lm.text_tokenizer


async def detokenize(model: ServedModel, request: DetokenizeRequest) -> Reply:
    """Decode token ids."""
    tokenizer = _tokenizer(model, request)
    check_ids("ids", request.ids, tokenizer)
    text = await asyncio.to_thread(
        tokenizer.decode, request.ids, skip_special_tokens=request.skip_special_tokens
    )
    return Reply({"object": "text", "model": model.name, "text": text}, Usage(len(request.ids)))


# Examples of requests
_TEXT = "The weather was cloudy yesterday."
_COMPLETION = {"prompt": "The weather was", "max_tokens": 16, "temperature": 0}
_CHAT = {"messages": [{"role": "user", "content": "How is the weather?"}], "max_tokens": 16}
_MASKED = {"text": "The [MASK] was cloudy yesterday.", "top_k": 3}
_QUESTION = {"question": "Where did she live?", "context": "Ada Lovelace lived in London."}
_CONTINUATION = {"context": "The weather", "text": " was cloudy."}

ENDPOINTS = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/completions", CompletionRequest, completions, "generate", _COMPLETION),
        Endpoint("/v1/chat/completions", ChatRequest, chat_completions, "chat", _CHAT),
        Endpoint("/v1/embeddings", EmbeddingRequest, embeddings, "embed", {"input": [_TEXT]}),
        Endpoint("/v1/fill-mask", FillMaskRequest, fill_mask, "fill_mask", _MASKED),
        Endpoint("/v1/classify", ClassifyRequest, classify, "classify", {"text": _TEXT}),
        Endpoint("/v1/tag", TagRequest, tag, "tag", {"text": "Ada Lovelace lived in London."}),
        Endpoint("/v1/answer", AnswerRequest, answer, "answer", _QUESTION),
        Endpoint("/v1/translate", TranslateRequest, translate, "translate", {"text": _TEXT}),
        Endpoint("/v1/score", ScoreRequest, score, "score", _CONTINUATION),
        Endpoint("/v1/tokenize", TokenizeRequest, tokenize, "tokenize", {"text": _TEXT}),
        Endpoint("/v1/detokenize", DetokenizeRequest, detokenize, "tokenize", {"ids": [5, 6, 7]}),
    )
}
"""Path -> endpoint."""
