"""Errors as HTTP answers, in the one shape that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from trivium.errors import TriviumError

CLIENT_CLOSED = 499
"""The status in log and metrics of a request whose client left before its answer."""

_MAX_ERRORS, _MAX_NAME = 3, 100
_SOURCES = ("body", "query", "path")
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An HTTP error.

    Args:
        status: of HTTP.
        message: for people.
        param: the field of the request that is wrong.
        code: for programs.
        headers: of the answer, such as Retry-After.
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
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        default = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": str(self),
                "type": _TYPES.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def as_api_error(error: Exception) -> ApiError:
    """Any exception as what the client reads; of an unexpected one only the log has details."""
    match error:
        case ApiError():
            return error
        case RequestValidationError() | ValidationError():
            return _invalid(error.errors())
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case TriviumError():
            return ApiError(400, str(error))
        case TimeoutError():
            message = "the time for a request was over before the answer: ask for less text."
            return ApiError(504, message, code="timeout")
        case _:
            message = "the server failed; its log has the details."
            return ApiError(500, message, code="internal_error")


def add_handlers(app: FastAPI) -> None:
    """Answer every exception in this shape."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    for kind in (ApiError, RequestValidationError, HTTPException, TriviumError, Exception):
        app.add_exception_handler(kind, answer)


def _invalid(errors: Sequence[Any]) -> ApiError:
    """400 for a body that is not JSON or does not fit its schema."""
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not valid JSON: {reason}.", code="invalid_json")
    messages: dict[str, list[str]] = {}  # field -> what is wrong, one for each member of a union
    for error in errors:
        message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message = "this field does not exist; /docs lists the fields of every endpoint"
        if message not in (known := messages.setdefault(_field(error["loc"]), [])):
            known.append(message)
    lines = [f"{field}{' or '.join(reasons)}" for field, reasons in messages.items()]
    more = f" ({len(lines) - _MAX_ERRORS} more)" if len(lines) > _MAX_ERRORS else ""
    names = [part for part in first["loc"] if part not in _SOURCES]
    return ApiError(
        400, "; ".join(lines[:_MAX_ERRORS]) + more, param=_printable(names[0]) if names else None
    )


def _field(loc: Sequence[Any]) -> str:
    """`name[index]: ` of a pydantic location, without the members of unions in it."""
    name, *rest = [part for part in loc if part not in _SOURCES] or [""]
    indices = "".join(f"[{part}]" for part in rest if isinstance(part, int))
    return f"{_printable(name)}{indices}: " if name else ""


def _printable(name: Any) -> str:
    """A field name from a client, short and valid UTF-8."""
    return str(name)[:_MAX_NAME].encode("utf-8", "backslashreplace").decode()
