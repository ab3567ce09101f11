"""The roads that OpenAI has no name for: fill masks, classify, tag, answer, translate, score."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from trivium.errors import SpecError, TriviumError
from trivium.inference.beam import Beams
from trivium.inference.continuations import encode_item, score_continuations
from trivium.inference.score import score_texts
from trivium.language_model import LanguageModel
from trivium.nn.positions import check_length
from trivium.serve.answering import answered
from trivium.serve.errors import ApiError
from trivium.serve.inputs import fit, shortened
from trivium.serve.limits import Limits
from trivium.serve.models import Models, Served
from trivium.serve.schemas import (
    AnswerRequest,
    ClassifyRequest,
    DetokenizeRequest,
    FillMaskRequest,
    ScoreRequest,
    TagRequest,
    TokenizeRequest,
    TranslateRequest,
    as_list,
)
from trivium.serve.schemas import Request as Asked

Items = Sequence[Any]
Function = Callable[[LanguageModel, Items], Sequence[Any]]

_USUAL_TARGET = 256
"""Tokens of a translation at most, unless told otherwise: as `LanguageModel.translate` has it."""


class Roads:
    """Asks models, and puts what they say into one form: `{"object", "model", "data", "usage"}`."""

    def __init__(self, models: Models, limits: Limits) -> None:
        self.models, self.limits = models, limits

    async def answer(
        self,
        request: Request,
        asked: Asked,
        road: str,
        function: Function,
        items: Items,
        *,
        key: Hashable | None = None,
    ) -> Response:
        """What a function, given a model, says of each of some items."""
        work = self._answer(request, asked, road, function, items, key)
        return await answered(request, work, seconds=self.limits.timeout)

    async def _answer(
        self,
        request: Request,
        asked: Asked,
        road: str,
        function: Function,
        items: Items,
        key: Hashable | None,
    ) -> Response:
        served = await self.models.ready(asked.model)
        lm = self._require(served, asked, road)
        served.admit(len(items))
        counts = await asyncio.to_thread(_tokens_of, lm, items)
        cut = isinstance(asked, ClassifyRequest) and asked.truncate
        if max(counts) > self.limits.max_prompt and not cut:
            raise ApiError(
                400,
                f"a text has {max(counts)} tokens, but at most {self.limits.max_prompt} are read: "
                "shorten it.",
                code="context_length_exceeded",
            )
        found = await served.ask(function, items, key=(road, key))
        tokens = sum(counts)
        served.count_read(tokens)
        request.state.about = f"{asked.model} {tokens} tokens"
        return JSONResponse(
            {
                "object": "list",
                "model": asked.model,
                "data": [{"index": n, **_plain(each)} for n, each in enumerate(found)],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    def _require(self, served: Served, asked: Asked, road: str) -> LanguageModel:
        """An encoder-decoder scores too, where it is said what it reads."""
        lm = served.lm
        both = lm is not None and lm.spec.family == "encoder-decoder"
        given = isinstance(asked, ScoreRequest) and asked.given is not None
        return served.require("translate" if road == "score" and both and given else road)


def _plain(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else dataclasses.asdict(found)


def _tokens_of(lm: LanguageModel, items: Items) -> list[int]:
    both = lm.spec.family == "encoder-decoder"
    tokenizer = lm.source_tokenizer if both else lm.text_tokenizer
    texts = [[part for part in _flat(item) if part] for item in items]
    ids = iter(tokenizer.encode_ids_batch([part for parts in texts for part in parts]))
    return [sum(len(next(ids)) for _ in parts) for parts in texts]


def _flat(item: Any) -> list[str]:
    """The texts of an item: one, a pair, or words."""
    if isinstance(item, str):
        return [item]
    return [part for part in item if isinstance(part, str)]


def roads(models: Models, limits: Limits) -> APIRouter:
    """The routes."""
    router, ask = APIRouter(tags=["Trivium"]), Roads(models, limits).answer

    @router.post("/v1/fill-mask", summary="Predict what stands behind a mask")
    async def fill_mask(request: Request, asked: FillMaskRequest) -> Response:
        top_k = asked.top_k or 5
        function = partial(_fill_masks, top_k)
        return await ask(request, asked, "fill-mask", function, as_list(asked.text), key=top_k)

    @router.post("/v1/classify", summary="Tell the class of a text or a pair")
    async def classify(request: Request, asked: ClassifyRequest) -> Response:
        truncate = bool(asked.truncate)
        function = partial(_classify, truncate, limits.max_prompt)
        return await ask(request, asked, "classify", function, _pairs(asked), key=truncate)

    @router.post("/v1/tag", summary="Tell what every word is")
    async def tag(request: Request, asked: TagRequest) -> Response:
        words = [text.split() if isinstance(text, str) else text for text in as_list(asked.text)]
        if any(not each or "" in each for each in words):
            raise ApiError(400, "a text has no words, or an empty one.", param="text")
        return await ask(request, asked, "tag", _tag, words)

    @router.post("/v1/answer", summary="Answer a question on a text")
    async def answer(request: Request, asked: AnswerRequest) -> Response:
        function = partial(_answer, asked.top_k or 1)
        items = [(asked.question, asked.context)]
        return await ask(request, asked, "answer", function, items, key=asked.top_k)

    @router.post("/v1/translate", summary="Write the target of a source")
    async def translate(request: Request, asked: TranslateRequest) -> Response:
        wanted = asked.max_tokens or min(_USUAL_TARGET, limits.max_tokens)
        if wanted > limits.max_tokens:
            raise ApiError(
                400,
                f"max_tokens is {wanted}, but this server writes {limits.max_tokens} at most.",
                param="max_tokens",
            )
        how = asked.num_beams, asked.length_penalty, wanted
        return await ask(
            request, asked, "translate", partial(_translate, how), as_list(asked.text), key=how
        )

    @router.post("/v1/score", summary="Tell how probable texts are")
    async def score(request: Request, asked: ScoreRequest) -> Response:
        items = [(asked.given, text) for text in as_list(asked.text)]
        return await ask(request, asked, "score", _score, items)

    @router.post("/v1/tokenize", summary="Turn texts into tokens")
    async def tokenize(request: Request, asked: TokenizeRequest) -> Response:
        around = asked.add_special_tokens is not False
        work = _tokenize(models, asked.model, as_list(asked.text), around)
        return await answered(request, work, seconds=limits.timeout)

    @router.post("/v1/detokenize", summary="Turn token ids into text")
    async def detokenize(request: Request, asked: DetokenizeRequest) -> Response:
        work = _detokenize(models, asked)
        return await answered(request, work, seconds=limits.timeout)

    return router


def _fill_masks(top_k: int, lm: LanguageModel, texts: Sequence[str]) -> list[dict[str, Any]]:
    """For every text its masks, and for every mask its fills, best first."""
    found = []
    for text in texts:
        fills = lm.fill_mask(text, top_k=top_k)
        masks = [fills] if not isinstance(fills[0], list) else fills
        found.append({"masks": [[dataclasses.asdict(fill) for fill in mask] for mask in masks]})
    return found


def _pairs(asked: ClassifyRequest) -> list[tuple[str, str | None]]:
    texts = as_list(asked.text)
    if asked.pair is None:
        return [(text, None) for text in texts]
    pairs = as_list(asked.pair)
    if len(pairs) != len(texts):
        raise ApiError(
            400, f"{len(texts)} texts have {len(pairs)} second texts: give as many.", param="pair"
        )
    return list(zip(texts, pairs))


def _classify(truncate: bool, most: int, lm: LanguageModel, pairs: Items) -> list[Any]:
    fitting = []
    for text, pair in pairs:
        read = fit(lm, text, pair, truncate=truncate, most=most)
        while read.cut:  # What is left may be cut into tokens otherwise, and be too long again.
            text, pair = shortened(text, pair, read)
            read = fit(lm, text, pair, truncate=True, most=most)
        fitting.append((text, pair))
    return lm.classify(fitting)


def _tag(lm: LanguageModel, sentences: Items) -> list[dict[str, Any]]:
    tagged = lm.tag(list(sentences))
    return [{"words": [dataclasses.asdict(word) for word in words]} for words in tagged]


def _answer(top_k: int, lm: LanguageModel, questions: Items) -> list[dict[str, Any]]:
    limit = lm.max_length
    for question, _ in questions:
        (ids,) = lm.text_tokenizer.encode_ids_batch([question])
        if limit is not None and len(ids) > limit // 4:
            raise SpecError(
                f"the question has {len(ids)} tokens, but this model reads at most {limit // 4} of "
                "one, beside its context: shorten it."
            )
    answers = lm.answer_all(list(questions), top_k=top_k)
    return [{"answers": [dataclasses.asdict(span) for span in spans]} for spans in answers]


def _translate(
    how: tuple[int | None, float | None, int], lm: LanguageModel, texts: Items
) -> list[dict[str, Any]]:
    num_beams, length_penalty, max_tokens = how
    beams: Beams = lm.usual_beams()
    if num_beams is not None:
        beams = dataclasses.replace(beams, num_beams=num_beams)
    if length_penalty is not None:
        beams = dataclasses.replace(beams, length_penalty=length_penalty)
    found = lm.translate(list(texts), beams=beams, max_new_tokens=max_tokens)
    return [{"text": text} for text in found]


def _score(lm: LanguageModel, items: Items) -> list[dict[str, Any]]:
    """Each by itself, so that its numbers depend on no other."""
    return [
        _score_text(lm, text) if given is None else _score_given(lm, given, text)
        for given, text in items
    ]


def _score_text(lm: LanguageModel, text: str) -> dict[str, Any]:
    tokenizer = lm.text_tokenizer
    (found,) = score_texts(lm.module, tokenizer, [text], batch_size=1)
    tokens = [
        {"token": tokenizer.tokens[index], "id": index, "log_probability": value}
        for index, value in zip(found.ids, found.log_probabilities, strict=True)
    ]
    return {
        "log_probability": found.total,
        "num_tokens": found.num_tokens,
        "tokens": tokens,
    }


def _score_given(lm: LanguageModel, given: str, text: str) -> dict[str, Any]:
    tokenizer, both = lm.text_tokenizer, lm.spec.family == "encoder-decoder"
    item = encode_item(tokenizer, given, [text], apart=both)
    if both and lm.own_source_tokenizer is not None:
        (source,) = lm.source_tokenizer.encode_ids_batch([given.strip()])
        item = item._replace(context=source)
    check_length(len(item.context), lm.spec.max_length)
    start = lm.decoder_start(tokenizer)
    ((found,),) = score_continuations(lm.module, [item], tokenizer=tokenizer, decoder_start=start)
    return {
        "log_probability": found.log_probability,
        "num_tokens": found.num_tokens,
        "greedy": found.greedy,
    }


async def _tokenize(models: Models, name: str, texts: list[str], around: bool) -> Response:
    served = await models.ready(name)
    tokenizer = served.require("tokenize").text_tokenizer
    found = await asyncio.to_thread(tokenizer.encode_batch, texts, add_special_tokens=around)
    data = [
        {
            "index": number,
            "ids": list(each.ids),
            "tokens": list(each.tokens),
            "offsets": [list(pair) for pair in each.offsets],
            "count": len(each.ids),
        }
        for number, each in enumerate(found)
    ]
    return JSONResponse({"object": "list", "model": name, "data": data})


async def _detokenize(models: Models, asked: DetokenizeRequest) -> Response:
    served = await models.ready(asked.model)
    tokenizer = served.require("tokenize").text_tokenizer
    wrong = [index for index in asked.ids if index >= tokenizer.vocab_size]
    if wrong:
        raise TriviumError(f"there is id {wrong[0]}, but ids end at {tokenizer.vocab_size}.")
    skip = asked.skip_special_tokens is not False
    text = await asyncio.to_thread(tokenizer.decode, asked.ids, skip_special_tokens=skip)
    return JSONResponse({"object": "text", "model": asked.model, "text": text})
