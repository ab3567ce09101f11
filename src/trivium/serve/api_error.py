"""Conversion of exceptions to HTTP error responses in the JSON format of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from trivium.config import expected
from trivium.errors import TriviumError, nearest_name, shorten
from trivium.serve.schemas import NOT_SUPPORTED, ErrorBody, ErrorDetail, StrictModel

CLIENT_CLOSED = 499
"""The status code in the log and metrics when a client disconnects before the response is sent."""

_MAX_NAME, _MAX_VALUE = 100, 60
_TYPE_NAMES = ("str", "int", "float", "bool")
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(HTTPException):
    """An exception that represents an HTTP error response in the format of OpenAI's API.

    Args:
        status: the HTTP status code.
        message: the error message for users; stored in the attribute `detail`.
        param: the invalid field of the request body.
        code: a machine-readable error code.
        headers: additional response headers, such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON body: `{"error": {"message", "type", "param", "code"}}`."""
        default = "invalid_request_error" if self.status_code < 500 else "server_error"
        kind = _TYPES.get(self.status_code, default)
        detail = ErrorDetail(message=self.detail, type=kind, param=self.param, code=self.code)
        return ErrorBody(error=detail).model_dump()

    def to_response(self) -> JSONResponse:
        """Convert the error to an HTTP response."""
        return JSONResponse(self.to_dict(), self.status_code, headers=self.headers)


def to_api_error(error: BaseException) -> ApiError:
    """Convert any exception to an ApiError.

    The details of an unexpected exception are logged, but are not sent to the client.
    """
    match error:
        case ApiError():
            return error
        case RequestValidationError() | ValidationError():
            return _make_body_error(error.errors())
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case TriviumError():
            return ApiError(400, str(error))
        case TimeoutError():
            message = "the request timed out before the answer was complete: ask for less text."
            return ApiError(504, message, code="timeout")
        case _:
            message = "the server failed; its log has the details."
            return ApiError(500, message, code="internal_error")


async def handle_error(request: Request, error: Exception) -> JSONResponse:
    """Convert an exception to an HTTP response.

    This is the exception handler that FastAPI calls.
    """
    if isinstance(error, RequestValidationError):
        body = getattr(request.scope.get("endpoint"), "__annotations__", {}).get("body")
        return _make_body_error(error.errors(), getattr(body, "model_fields", None)).to_response()
    return to_api_error(error).to_response()


def add_error_handlers(app: FastAPI) -> None:
    """Register exception handlers that send every error in the format of OpenAI's API."""
    for kind in (RequestValidationError, HTTPException, TriviumError, Exception):
        app.add_exception_handler(kind, handle_error)


def _make_body_error(
    errors: Sequence[Any], known_fields: Mapping[str, Any] | None = None
) -> ApiError:
    """Return the error (400) for a request body that is not JSON or does not match the schema.

    The message names only the first invalid field.

    Args:
        errors: the list of errors from pydantic.
        known_fields: field name -> field of the endpoint's schema.
    """
    known_fields, first = known_fields or {}, errors[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return ApiError(400, f"the body is not valid JSON: {reason}.", code="invalid_json")
    field = _get_field_path(first)[:1]
    # pydantic reports errors for every member of a union. The error with the longest path belongs
    # to the member that the client meant.
    same_field = [error for error in errors if _get_field_path(error)[:1] == field]
    deepest = max(same_field, key=lambda error: len(_get_field_path(error)))
    path = _get_field_path(deepest)
    if not path:
        return ApiError(400, "the body must be a JSON object; /docs has one for every endpoint.")
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    name, param = (_shorten_printable(text, _MAX_NAME) for text in (name, path[0]))
    description = getattr(known_fields.get(str(path[0])), "description", None) or ""
    match deepest["type"]:
        case _ if description.startswith(NOT_SUPPORTED):
            verb, object_ = ("are", "them") if param.endswith("s") else ("is", "it")
            message = f"{param} {verb} not supported: leave {object_} out."
        case _ if path[-1] == "function_call" or (
            path[-1] == "role" and deepest["input"] == "function"
        ):
            message = f"{name}: functions are not supported: use tools, which replace them."
        case "too_short":
            message = f"{name} is empty, but must have at least one entry."
        case "missing":
            message = f"{name} is missing; "
            unknown = [_get_field_path(e) for e in errors if e["type"] == "extra_forbidden"]
            if siblings := [other[-1] for other in unknown if other[:-1] == path[:-1]]:
                other_name = _shorten_printable(siblings[0], _MAX_NAME)
                message += f"there is no field {other_name}, did you mean {path[-1]}? "
            message += "/docs has an example of every endpoint."
        case "extra_forbidden":
            similar = nearest_name(name, known_fields) if len(path) == 1 else []
            hint = f"did you mean {similar[0]}? " if similar else ""
            message = f"there is no field {name}; {hint}/docs lists the fields of every endpoint."
        case "none_required":
            message = f"{name} is not supported: leave it out."
        case _:
            same = [error for error in errors if _get_field_path(error) == path]
            allowed = " or ".join(dict.fromkeys(map(expected, same)))
            allowed = allowed.replace("a table of keys", "an object")  # as JSON calls it
            value = _shorten_printable(json.dumps(deepest["input"], default=str), _MAX_VALUE)
            message = f"{name} is {value}, but must be {allowed}."
    return ApiError(400, message, param=param)


def _get_field_path(error: Any) -> list[str | int]:
    """Return the path to an invalid field: the keys and indices that lead to it in the JSON body.

    `error` is an error from pydantic. For unions, pydantic adds type names to the path; they are
    removed.
    """
    type_names = {*_TYPE_NAMES, *(schema.__name__ for schema in StrictModel.__subclasses__())}
    steps = error["loc"][int(error["loc"][:1] == ("body",)) :]
    return [
        step
        for number, step in enumerate(steps)
        if not number or isinstance(step, int) or (step.isidentifier() and step not in type_names)
    ]


def _shorten_printable(value: Any, max_length: int) -> str:
    """Convert a value to a string of at most `max_length` characters, for an error message.

    Lone surrogates (which are valid in JSON) are replaced with escape sequences.
    """
    return shorten(str(value), max_length).encode("utf-8", "backslashreplace").decode()
