"""`/v1/embeddings`: vectors of texts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from torch import Tensor

from trivium.errors import SpecError
from trivium.inference.embed import Pooling, embed_texts
from trivium.language_model import LanguageModel
from trivium.nn.positions import check_length
from trivium.serve.answering import answered
from trivium.serve.errors import ApiError
from trivium.serve.inputs import fit, usual_pooling
from trivium.serve.limits import Limits
from trivium.serve.models import Models
from trivium.serve.prompts import Prompt
from trivium.serve.schemas import EmbeddingRequest
from trivium.serve.writing import Event

Item = tuple[Prompt, int]


def embeddings(models: Models, limits: Limits) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/embeddings", summary="Turn texts into vectors")
    async def embed(request: Request, asked: EmbeddingRequest) -> Response:
        work = _embed(models, limits, request, asked)
        return await answered(request, work, seconds=limits.timeout)

    return router


async def _embed(
    models: Models, limits: Limits, request: Request, asked: EmbeddingRequest
) -> Response:
    served = await models.ready(asked.model)
    lm = served.require("embeddings")
    width = lm.spec.d_model
    if asked.dimensions not in (None, width):
        raise ApiError(
            400, f"the vectors of this model have {width} dimensions.", param="dimensions"
        )
    given: Any = asked.input
    one = isinstance(given, str) or isinstance(given[0], int)
    inputs: list[Prompt] = [given] if one else list(given)
    if not all(inputs):
        raise ApiError(400, "an input is empty.", param="input")
    pooling = asked.pooling or usual_pooling(lm)
    normalize = asked.normalize is not False
    truncate = bool(asked.truncate)

    def vectors(lm: LanguageModel, items: Sequence[Prompt]) -> list[tuple[Tensor, int]]:
        return _vectors(lm, items, pooling, normalize, truncate, limits.max_prompt)

    found = await served.ask(vectors, inputs, key=("embed", pooling, normalize, truncate))
    tokens = sum(count for _, count in found)
    served.count_read(tokens)
    request.state.about = f"{asked.model} {tokens} tokens"
    data = [
        {"object": "embedding", "index": number, "embedding": _written(vector, asked)}
        for number, (vector, _) in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    body: Event = {"object": "list", "data": data, "model": asked.model, "usage": usage}
    return JSONResponse(body)


def _vectors(
    lm: LanguageModel,
    inputs: Sequence[Prompt],
    pooling: Pooling,
    normalize: bool,
    truncate: bool,
    most: int,
) -> list[tuple[Tensor, int]]:
    """The vector of each input and its tokens; ids are read as they are."""
    rows = []
    for given in inputs:
        if isinstance(given, str):
            rows.append(fit(lm, given, truncate=truncate, most=most).ids)
        else:
            rows.append(_checked(lm, list(given), most))
    vectors = embed_texts(lm.module, rows, pooling=pooling, normalize=normalize)
    return [(vector, len(row)) for vector, row in zip(vectors, rows, strict=True)]


def _checked(lm: LanguageModel, ids: list[int], most: int) -> list[int]:
    check_length(len(ids), min(most, lm.max_length or most))
    wrong = [index for index in ids if index >= lm.spec.vocab_size]
    if wrong:
        raise SpecError(f"the input has id {wrong[0]}, but ids end at {lm.spec.vocab_size}.")
    return ids


def _written(vector: Tensor, asked: EmbeddingRequest) -> list[float] | str:
    """A vector as numbers, or as little-endian float32 in base64."""
    if asked.encoding_format == "base64":
        return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
    return vector.tolist()
