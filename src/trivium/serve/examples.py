"""The OpenAPI document: every example in it names a model that is served, and runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from trivium.serve.models import ROADS, Models, Served
from trivium.serve.schemas import ErrorBody

# Road -> what one might ask, without the model.
_EXAMPLES: Mapping[str, dict[str, Any]] = {
    "completions": {"prompt": "The weather was", "max_tokens": 16, "temperature": 0},
    "chat/completions": {
        "messages": [{"role": "user", "content": "How is the weather?"}],
        "max_tokens": 16,
    },
    "embeddings": {"input": ["The weather was cloudy.", "It rained."]},
    "fill-mask": {"text": "The {mask} was cloudy yesterday.", "top_k": 3},
    "classify": {"text": "A wonderful film."},
    "tag": {"text": "Ada Lovelace lived in London ."},
    "answer": {
        "question": "Where did she live?",
        "context": "Ada Lovelace lived in London.",
    },
    "translate": {"text": "The weather was cloudy.", "max_tokens": 32},
    "score": {"text": "The weather was cloudy."},
    "tokenize": {"text": "The weather was cloudy."},
    "detokenize": {"ids": [5, 6, 7]},
}
_ERRORS = {
    400: "The request is wrong, or more than this server or this model can do.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    413: "The body is too large.",
    429: "Too many requests wait: ask again later.",
    503: "The model cannot be loaded now.",
    504: "The answer took too long.",
}
_TITLE = "Trivium"


def openapi_with_examples(app: FastAPI, models: Models, *, keyed: bool) -> dict[str, Any]:
    """The document as things stand: a model shows what it can do when it is loaded, or before."""
    found = get_openapi(
        title=_TITLE,
        version=version("trivium"),
        description="Language models, served: the roads of OpenAI and some of our own.",
        routes=app.routes,
    )
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    error = ErrorBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(error.pop("$defs", {}), ErrorBody=error)
    for schema in schemas.values():
        model = schema.get("properties", {}).get("model")
        if model is not None:
            model["enum"] = list(models.names)
    if keyed:
        scheme = {"type": "http", "scheme": "bearer"}
        found["components"]["securitySchemes"] = {"key": scheme}
        found["security"] = [{"key": []}]
    for path, operations in found["paths"].items():
        for operation in operations.values():
            _describe(operation, path.removeprefix("/v1/"), models)
    return found


def _describe(operation: dict[str, Any], road: str, models: Models) -> None:
    """Put errors and an example into one operation."""
    responses = operation["responses"]
    responses.pop("422", None)
    if "requestBody" not in operation:
        return
    for status, description in _ERRORS.items():
        schema = {"$ref": "#/components/schemas/ErrorBody"}
        content = {"application/json": {"schema": schema}}
        responses[str(status)] = {"description": description, "content": content}
    if road in ("completions", "chat/completions"):
        responses["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    example = example_of(road, models)
    if example is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = example


def example_of(road: str, models: Models) -> dict[str, Any] | None:
    """What one might ask of a road; None where no model that is served can do it."""
    served = _able(road, models)
    if served is None or road not in _EXAMPLES:
        return None
    found = {"model": served.name, **_EXAMPLES[road]}
    if road == "fill-mask":
        found["text"] = found["text"].replace("{mask}", served.mask or "[MASK]")
    return found


def _able(road: str, models: Models) -> Served | None:
    """A model that can do what a road needs; of those not looked into yet it is assumed."""
    verb = ROADS.get(road)
    known = [(each, each.verbs) for each in models]
    for each, verbs in known:
        if verbs is not None and (verb is None or verb in verbs):
            return each
    return next((each for each, verbs in known if verbs is None), None)
