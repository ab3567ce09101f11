"""The table of all endpoints, and the functions that answer their requests.

The table `ENDPOINTS` is the source of the routes, the OpenAPI document and `/v1/models`. An
endpoint consists of a request schema, a function and an entry in the table. For completions and
chat, the schemas are in `schemas.py` and `chat_schemas.py`, and the functions in `generation.py`
and `chat_completion.py`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from trivium.errors import SpecError
from trivium.inference.embed import embed_windows
from trivium.inference.rerank import score_pairs, sort_documents
from trivium.inference.score import score_text
from trivium.inference.tag import merge_entities
from trivium.language_model import LanguageModel
from trivium.models.heads.text import Pooling
from trivium.serve.api_error import ApiError
from trivium.serve.chat_completion import complete_chat
from trivium.serve.chat_schemas import ChatRequest
from trivium.serve.generation import (
    check_num_texts,
    check_num_tokens,
    check_token_ids,
    complete,
    find_prompt_limit,
)
from trivium.serve.model_thread import Function
from trivium.serve.models import ModelRegistry, ServedModel
from trivium.serve.replies import Json, Reply, Usage
from trivium.serve.schemas import (
    ITEMS,
    NO_EFFECT,
    PROMPT_DESCRIPTION,
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
from trivium.text.languages import find_language_id

_SOURCE = (
    "Which tokenizer to use if the model has two: true for the tokenizer of sources (the input of "
    "the encoder), false for the tokenizer of targets."
)
_TRUNCATE = "Whether to truncate texts that are too long. If false, they are refused."


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of the API.

    Args:
        path: the URL path.
        schema: the schema of the request body.
        function: the function that answers a request. The first line of its docstring is the
            summary in the OpenAPI document.
        capability: the capability that a model needs: one of `LanguageModel.capabilities`, the task
            that it was fine-tuned for, "chat" (it has a chat template) or "tokenize".
        example: an example of a request body without the field `model`.
    """

    path: str
    schema: type[ModelRequest]
    function: Callable[[ServedModel, Any], Awaitable[Reply]]
    capability: str
    example: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """The one-line description of the endpoint in the OpenAPI document."""
        return (self.function.__doc__ or "").partition("\n")[0].rstrip(".")

    def accepts(self, lm: LanguageModel) -> bool:
        """Return whether a model supports this endpoint.

        A model without a tokenizer supports no endpoint.
        """
        supported = {*lm.capabilities, lm.settings.task, "tokenize"}
        if "generate" in supported and lm.settings.chat_template:
            supported.add("chat")
        return lm.tokenizer is not None and self.capability in supported

    async def respond(self, registry: ModelRegistry, request: ModelRequest) -> Reply:
        """Answer a request with the model that the request names. Loads the model if necessary.

        Raises ApiError (400) if the model does not support this endpoint.
        """
        model = await registry.get_loaded(request.model)
        if self.accepts(model.lm):
            with model.keep_loaded():
                served = model.with_special_tokens(request.special_tokens)
                return await self.function(served, request)
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


async def _run_and_reply(
    model: ServedModel, num_tokens: int, function: Function, items: Sequence[Any], **options: Any
) -> Reply:
    """Call `function(lm, items, **options)` in the model's thread, and reply with the results.

    `num_tokens` is the total number of tokens in the items, for scheduling and the usage counts.
    """
    data = await model.thread.call(
        function, items, num_tokens, special_tokens=model.special_tokens, **options
    )
    return _make_list_reply(model, data, Usage(num_tokens))


def _make_list_reply(model: ServedModel, data: Sequence[Any], usage: Usage) -> Reply:
    """Build a reply with a list of results, and add the token counts to the metrics.

    An index is added to each result. Results are dataclasses, or dicts whose values may be
    dataclasses.
    """
    counts = {"prompt": usage.prompt_tokens, "generated": usage.completion_tokens}
    for kind, count in counts.items():
        model.metrics.tokens.labels(model.name, kind).inc(count)
    numbered = [{"index": index, **each} for index, each in enumerate(to_jsonable_python(data))]
    body = {"object": "list", "model": model.name, "data": numbered, "usage": usage.to_dict()}
    return Reply(body, usage)


async def _count_tokens(
    model: ServedModel, items: Sequence[str | Sequence[str]], max_tokens: int | None = None
) -> int:
    """Return the total number of tokens of texts, pairs of texts or lists of words.

    Raises ApiError (400) if there are too many items or if an item has more than `max_tokens`
    tokens. The default of `max_tokens` is `Limits.max_prompt`.
    """
    check_num_texts(len(items), model.limits)
    encode = model.lm.source_tokenizer.encode_ids_batch
    texts = [[item] if isinstance(item, str) else item for item in items]
    counts = await asyncio.to_thread(lambda: [sum(map(len, encode(parts))) for parts in texts])
    check_num_tokens("text", max(counts), max_tokens or model.limits.max_prompt)
    return sum(counts)


def _get_max_text_tokens(model: ServedModel) -> int:
    """Return the maximum number of tokens that the model can process at once."""
    return min(model.limits.max_prompt, model.lm.max_length or model.limits.max_prompt)


async def _encode_texts(
    model: ServedModel, texts: Sequence[tuple[str, str | None]], *, truncate: bool
) -> list[TextInput]:
    """Tokenize texts or pairs of texts into model inputs.

    If `truncate` is true, long texts are truncated; otherwise they raise ApiError (400). Too many
    texts also raise ApiError (400).
    """
    check_num_texts(len(texts), model.limits)
    lm, longest = model.lm, _get_max_text_tokens(model)
    inputs = await asyncio.to_thread(
        encode_inputs,
        lm.source_tokenizer,
        texts,
        max_length=longest,
        as_documents=lm.uses_document_tokens,
    )
    if not truncate:
        length = max(len(each.ids) + each.cut for each in inputs)
        check_num_tokens("text", length, longest, "shorten it, or set truncate")
    return inputs


class EmbeddingRequest(ModelRequest):
    """The request body of `POST /v1/embeddings`."""

    input: Prompt = Field(description=PROMPT_DESCRIPTION)
    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="Whether to return vectors as lists of numbers (float, the default) or as "
        "base64 of little-endian float32.",
    )
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Only the size of the model's vectors is accepted."
    )
    pooling: Pooling | None = Field(
        None,
        description="How to pool the vectors of the tokens; default: the pooling that the model "
        "was trained with, otherwise the mean.",
    )
    normalize: bool | None = Field(
        None, description="Whether to scale vectors to length 1; null: the model's own setting."
    )
    truncate: bool = Field(
        False, description="Whether to truncate long texts. If false, they are read in windows."
    )
    user: str | None = Field(None, description=NO_EFFECT)


async def embed(model: ServedModel, request: EmbeddingRequest) -> Reply:
    """Compute embedding vectors of texts."""
    lm = model.lm
    if request.dimensions not in (None, lm.vector_size):
        have = f"the vectors of this model have {lm.vector_size}"
        message = f"dimensions is {request.dimensions}, but {have}."
        raise ApiError(400, message, param="dimensions")
    texts = as_list(request.input)
    if not all(texts):
        raise ApiError(400, "an input is empty.", param="input")
    if not isinstance(texts[0], str):
        check_num_texts(len(texts), model.limits)
        check_num_tokens("input", max(map(len, texts)), _get_max_text_tokens(model))
        check_token_ids("input", [max(row) for row in texts], lm.source_tokenizer)
        windows = [[TextInput(row, [0] * len(row), [], [])] for row in texts]
    elif request.truncate:
        check_num_texts(len(texts), model.limits)
        windows = await asyncio.to_thread(
            lm.embedding_windows, texts, max_length=_get_max_text_tokens(model)
        )
    else:
        await _count_tokens(model, texts)
        windows = await asyncio.to_thread(lm.embedding_windows, texts)
    return await _run_and_reply(
        model,
        sum(len(window.ids) for each in windows for window in each),
        _embed_to_json,
        windows,
        pooling=request.pooling,
        normalize=request.normalize,
        base64=request.encoding_format == "base64",
    )


def _embed_to_json(
    lm: LanguageModel,
    windows: Sequence[list[TextInput]],
    *,
    pooling: Pooling | None,
    normalize: bool | None,
    base64: bool,
) -> list[Json]:
    """Compute embeddings of texts, and return them in the JSON format of OpenAI's API.

    Each text is given as a list of windows. With `base64`, each vector is the base64 text of its
    little-endian float32 values instead of a list of numbers.
    """
    vectors = embed_windows(lm, windows, pooling=pooling, normalize=normalize)
    return [
        {
            "object": "embedding",
            "embedding": b64encode(vector.tobytes()).decode() if base64 else vector.tolist(),
        }
        for vector in vectors.numpy().astype("<f4")
    ]


class FillMaskRequest(ModelRequest):
    """The request body of `POST /v1/fill-mask`."""

    text: Texts = Field(description="A text or a list of texts, each with [MASK] or <mask>.")
    top_k: int = Field(
        5,
        ge=1,
        le=100,
        description="Number of predictions per mask. T5 and BART return this number of predictions "
        "for all masks of a text together. GLM returns only one.",
    )


async def fill_mask(model: ServedModel, request: FillMaskRequest) -> Reply:
    """Predict masked tokens, with the most probable predictions first."""
    texts = as_list(request.text)
    around = model.lm.source_template.count_special(paired=False)
    num_tokens = await _count_tokens(model, texts) + around * len(texts)
    return await _run_and_reply(model, num_tokens, _fill_all_masks, texts, top_k=request.top_k)


def _fill_all_masks(lm: LanguageModel, texts: Sequence[str], *, top_k: int) -> list[Json]:
    """Predict the `top_k` most probable fills for every mask of each text.

    Returns one dict per text.
    """
    fills = [lm.fill_mask(text, top_k=top_k) for text in texts]
    return [{"masks": each if isinstance(each[0], list) else [each]} for each in fills]


class ClassifyRequest(ModelRequest):
    """The request body of `POST /v1/classify`."""

    text: Texts = Field(description="A text or a list of texts.")
    pair: Texts | None = Field(
        None, description="The second text of each pair, for models that classify pairs of texts."
    )
    truncate: bool = Field(False, description=_TRUNCATE)


async def classify(model: ServedModel, request: ClassifyRequest) -> Reply:
    """Classify texts or pairs of texts, with the probabilities of all labels."""
    texts = as_list(request.text)
    pairs = [None] * len(texts) if request.pair is None else as_list(request.pair)
    if len(pairs) != len(texts):
        message = f"there are {len(texts)} texts and {len(pairs)} second texts: give equal numbers."
        raise ApiError(400, message, param="pair")
    items = list(zip(texts, pairs))
    inputs = await _encode_texts(model, items, truncate=request.truncate)
    num_tokens = sum(len(each.ids) for each in inputs)
    return await _run_and_reply(model, num_tokens, LanguageModel.classify, items)


class RerankDocument(BaseModel):
    """A document of a request for reranking, given as an object."""

    model_config = ConfigDict(extra="forbid")

    text: Text = Field(description="The text of the document.")


class RerankRequest(ModelRequest):
    """The request body of `POST /v1/rerank`, in the format of Cohere, Jina and vLLM."""

    query: Text = Field(description="The text that the documents are compared with.")
    documents: Annotated[list[Text | RerankDocument], ITEMS] = Field(
        description="The documents to rank: texts, or objects with a text."
    )
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The maximum number of results; null: all documents."
    )
    return_documents: bool = Field(True, description="Whether results contain the documents.")
    truncate: bool = Field(False, description=_TRUNCATE)


async def rerank(model: ServedModel, request: RerankRequest) -> Reply:
    """Rank documents by their relevance to a query, most relevant first."""
    texts = [one if isinstance(one, str) else one.text for one in request.documents]
    items = [(request.query, text) for text in texts]
    inputs = await _encode_texts(model, items, truncate=request.truncate)
    usage = Usage(sum(len(each.ids) for each in inputs))
    scores = await model.thread.call(
        score_pairs, items, usage.prompt_tokens, special_tokens=model.special_tokens
    )
    model.metrics.tokens.labels(model.name, "prompt").inc(usage.prompt_tokens)
    results = [
        {"index": one.index, "relevance_score": one.score}
        | ({"document": {"text": one.document}} if request.return_documents else {})
        for one in sort_documents(texts, scores)[: request.top_n]
    ]
    return Reply({"model": model.name, "results": results, "usage": usage.to_dict()}, usage)


class TagRequest(ModelRequest):
    """The request body of `POST /v1/tag`."""

    text: Text | Annotated[list[Text | TextList], ITEMS] = Field(
        description="A text or a list of texts. In a list, a sentence may be a list of words."
    )


async def tag(model: ServedModel, request: TagRequest) -> Reply:
    """Tag the words of texts, and merge tags into named entities."""
    texts = as_list(request.text)
    if not all(text.strip() if isinstance(text, str) else text and all(text) for text in texts):
        raise ApiError(400, "a text has no words, or an empty one.", param="text")
    num_tokens = await _count_tokens(model, texts)
    return await _run_and_reply(model, num_tokens, _tag_texts, texts)


def _tag_texts(lm: LanguageModel, texts: list[str | Sequence[str]]) -> list[Json]:
    """Tag the words of each text.

    Returns a dict per text with its tagged words and its entities.
    """
    results: list[Json] = []
    for text, words in zip(texts, lm.tag(texts)):
        joined = text if isinstance(text, str) else join_words(text)[0]
        results.append({"words": words, "entities": merge_entities(words, joined)})
    return results


class AnswerRequest(ModelRequest):
    """The request body of `POST /v1/answer`."""

    question: Text = Field(description="The question.")
    context: Text = Field(description="The text that contains the answer.")
    top_k: int = Field(1, ge=1, le=20, description="Number of answers to return.")


async def answer(model: ServedModel, request: AnswerRequest) -> Reply:
    """Answer a question with spans of a context, the best answer first."""
    longest = _get_max_text_tokens(model) // 4
    in_question = await _count_tokens(model, [request.question])
    hint = "shorten it, to leave room for its context"
    check_num_tokens("question", in_question, longest, hint)
    in_context = await _count_tokens(model, [request.context])
    items = [(request.question, request.context)]
    return await _run_and_reply(
        model, in_question + in_context, _answer_questions, items, top_k=request.top_k
    )


def _answer_questions(
    lm: LanguageModel, items: Sequence[tuple[str, str]], *, top_k: int
) -> list[Json]:
    """Return the `top_k` best answers for each pair (question, context)."""
    return [{"answers": spans} for spans in lm.answer_all(items, top_k=top_k)]


class TranslateRequest(ModelRequest):
    """The request body of `POST /v1/translate`."""

    text: Texts = Field(description="A source text or a list of source texts.")
    source_language: str | None = Field(
        None,
        description="Language of the texts for a multilingual model, such as en_XX (mBART), "
        "eng_Latn (NLLB) or en (M2M-100); default: the tokenizer's.",
    )
    target_language: str | None = Field(
        None, description="Language of the outputs; default: the model's."
    )
    num_beams: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="Number of beams; 1 is greedy decoding; default: the model's own setting."
    )
    length_penalty: Annotated[float, Field(ge=-10.0, le=10.0)] | None = Field(
        None,
        description="Exponent of the length by which scores are divided; above 0 favours long "
        "texts.",
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Maximum number of tokens to generate, limited by the server; default: the "
        "model's own limit, or twice the number of source tokens plus 16, at most 256.",
    )


async def translate(model: ServedModel, request: TranslateRequest) -> Reply:
    """Translate texts with beam search, or generate the output texts of another encoder-decoder."""
    texts = as_list(request.text)
    num_tokens = await _count_tokens(model, texts)
    names = {"num_beams", "length_penalty", "source_language", "target_language"}
    options = request.model_dump(include=names, exclude_none=True)
    for param in ("source_language", "target_language"):
        if param in options:
            try:
                find_language_id(model.lm.source_tokenizer, options[param])
            except SpecError as error:
                raise ApiError(400, str(error), param=param) from None
    options |= {"max_tokens": request.max_tokens, "server_limit": model.limits.max_tokens}
    options["special_tokens"] = model.special_tokens
    targets = await model.thread.call(_translate_texts, texts, num_tokens, **options)
    encoded = await asyncio.to_thread(model.lm.text_tokenizer.encode_ids_batch, targets)
    data = [{"text": target} for target in targets]
    return _make_list_reply(model, data, Usage(num_tokens, sum(map(len, encoded))))


def _translate_texts(
    lm: LanguageModel,
    texts: Sequence[str],
    *,
    max_tokens: int | None,
    server_limit: int,
    **options: Any,
) -> list[str]:
    """Translate each text. Returns the translations.

    Args:
        lm: the model.
        texts: the source texts.
        max_tokens: the maximum number of tokens set by the request; None uses the default of
            `LanguageModel.translate`.
        server_limit: the maximum number of tokens that the server allows.
        options: other arguments of `LanguageModel.translate`.
    """
    if max_tokens is not None:
        return lm.translate([*texts], max_new_tokens=min(max_tokens, server_limit), **options)
    too_long = [lm.target_limit(ids) > server_limit for ids in lm.prompts(texts)]
    targets: dict[int, str] = {}
    for limit in (None, server_limit):
        indices = [i for i, each in enumerate(too_long) if each == (limit is not None)]
        if indices:
            several = [texts[i] for i in indices]
            targets |= zip(indices, lm.translate(several, max_new_tokens=limit, **options))
    return [targets[i] for i in range(len(texts))]


class ScoreRequest(ModelRequest):
    """The request body of `POST /v1/score`."""

    text: Texts = Field(description="A text or a list of texts.")
    context: Text | None = Field(
        None,
        description="The text that precedes each text. Both are tokenized as one string, without a "
        "space between them. An encoder-decoder reads the context with its encoder. A context that "
        "is too long is truncated at its start; num_cut in the response is the number of removed "
        "tokens.",
    )


async def score(model: ServedModel, request: ScoreRequest) -> Reply:
    """Compute the log-probability of texts in nats, alone or as continuations of a context."""
    texts, context = as_list(request.text), request.context
    if context is None and model.lm.spec.family == "encoder-decoder":
        message = "this model scores a text as the output for an input of its encoder: set context."
        raise ApiError(400, message, param="context")
    # The scoring of a model without a maximum context length is limited to save memory.
    most = None if model.lm.context_length else find_prompt_limit(model.lm, model.limits)[0]
    num_tokens = await _count_tokens(model, [(context or "", text) for text in texts], most)
    return await _run_and_reply(model, num_tokens, _score_texts, texts, context=context)


def _score_texts(lm: LanguageModel, texts: Sequence[str], *, context: str | None) -> list[Json]:
    """Compute the log-probabilities of each text and of its tokens, given the context."""
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
    """The request body of `POST /v1/tokenize`."""

    text: Texts = Field(description="A text or a list of texts.")
    add_special_tokens: bool = Field(
        True, description="Whether to add the special tokens at the start and end of each text."
    )
    source: bool = Field(True, description=_SOURCE)


async def tokenize(model: ServedModel, request: TokenizeRequest) -> Reply:
    """Tokenize texts into tokens with ids and character offsets."""
    tokenizer = _get_tokenizer(model, request)
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
    """The request body of `POST /v1/detokenize`."""

    ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=2**17)] = Field(
        description="The token ids of a text."
    )
    skip_special_tokens: bool = Field(
        True, description="Whether to leave special tokens out of the text."
    )
    source: bool = Field(True, description=_SOURCE)


def _get_tokenizer(model: ServedModel, request: TokenizeRequest | DetokenizeRequest) -> Tokenizer:
    """Return the source or target tokenizer of a model, as selected in the request."""
    lm = model.lm.prompting
    return lm.source_tokenizer if request.source else lm.text_tokenizer


async def detokenize(model: ServedModel, request: DetokenizeRequest) -> Reply:
    """Decode token ids to text."""
    tokenizer = _get_tokenizer(model, request)
    check_token_ids("ids", request.ids, tokenizer)
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
_RANKED = {"query": "Who wrote it?", "documents": ["Ada wrote the first program.", _TEXT]}
_CONTINUATION = {"context": "The weather", "text": " was cloudy."}

ENDPOINTS = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/completions", CompletionRequest, complete, "generate", _COMPLETION),
        Endpoint("/v1/chat/completions", ChatRequest, complete_chat, "chat", _CHAT),
        Endpoint("/v1/embeddings", EmbeddingRequest, embed, "embed", {"input": [_TEXT]}),
        Endpoint("/v1/fill-mask", FillMaskRequest, fill_mask, "fill_mask", _MASKED),
        Endpoint("/v1/classify", ClassifyRequest, classify, "classify", {"text": _TEXT}),
        Endpoint("/v1/rerank", RerankRequest, rerank, "rerank", _RANKED),
        Endpoint("/v1/tag", TagRequest, tag, "tag", {"text": "Ada Lovelace lived in London."}),
        Endpoint("/v1/answer", AnswerRequest, answer, "answer", _QUESTION),
        Endpoint("/v1/translate", TranslateRequest, translate, "translate", {"text": _TEXT}),
        Endpoint("/v1/score", ScoreRequest, score, "score", _CONTINUATION),
        Endpoint("/v1/tokenize", TokenizeRequest, tokenize, "tokenize", {"text": _TEXT}),
        Endpoint("/v1/detokenize", DetokenizeRequest, detokenize, "tokenize", {"ids": [5, 6, 7]}),
    )
}
"""URL path -> endpoint."""
