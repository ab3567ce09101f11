"""Constraints on generated text: the fields `response_format` and `structured_outputs`."""

from __future__ import annotations

from trivium.serve.api_error import ApiError
from trivium.serve.replies import Json
from trivium.serve.schemas import GenerateRequest


def read_constraint(request: GenerateRequest) -> Json:
    """Return the constraint of a request as a dict with one option of `SamplingParams`.

    Returns an empty dict if there is no constraint. Raises ApiError (400) if there are several
    constraints, or a schema is missing.
    """
    options: Json = {}
    if (format := request.response_format) is not None:
        if (format.json_schema is not None) != (format.type == "json_schema"):
            message = "response_format has a json_schema if and only if its type is json_schema."
            raise ApiError(400, message, param="response_format")
        if format.json_schema is not None:
            options["json_schema"] = format.json_schema.schema_
        elif format.type == "json_object":
            options["json_schema"] = {"type": "object"}
    if (outputs := request.structured_outputs) is not None:
        given = {
            "json_schema": outputs.json_,
            "regex": outputs.regex,
            "choices": outputs.choice,
            "grammar": outputs.grammar,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) != 1 or options:
            raise ApiError(
                400,
                "a text can follow only one of json, regex, choice and grammar in "
                "structured_outputs, or response_format: set one.",
                param="structured_outputs",
            )
        options |= given
    return options


def find_constraint_field(request: GenerateRequest) -> str | None:
    """Return the name of the request field that constrains the generated text, or None."""
    if request.structured_outputs is not None:
        return "structured_outputs"
    return "response_format" if request.response_format is not None else None
