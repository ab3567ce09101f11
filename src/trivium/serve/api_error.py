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

_MAX_NAME = 100
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(HTTPException):
    """An HTTP error.

    Args:
        status: of HTTP.
        message: for people; the attribute `detail`.
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
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        default = "invalid_request_error" if self.status_code < 500 else "server_error"
        return {
            "error": {
                "message": self.detail,
                "type": _TYPES.get(self.status_code, default),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body(), self.status_code, headers=self.headers)


def as_api_error(error: BaseException) -> ApiError:
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

    async def respond(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    for kind in (RequestValidationError, HTTPException, TriviumError, Exception):
        app.add_exception_handler(kind, respond)


def _invalid(errors: Sequence[Any]) -> ApiError:
    """400 for a body that is not JSON, or for the first field that does not fit the schema."""
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return ApiError(400, f"the body is not valid JSON: {reason}.", code="invalid_json")
    start = int(first["loc"][:1] == ("body",))
    path = first["loc"][start:]
    same_field = [error for error in errors if error["loc"][start:][:1] == path[:1]]
    message = " or ".join(dict.fromkeys(map(_reason, same_field)))  # one per member of a union
    if not path:
        return ApiError(400, message)
    name = str(path[0])[:_MAX_NAME].encode("utf-8", "backslashreplace").decode()
    indices = "".join(f"[{part}]" for part in path if isinstance(part, int))
    return ApiError(400, f"{name}{indices}: {message}", param=name)


def _reason(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "this field does not exist; /docs lists the fields of every endpoint"
    return error["msg"].removeprefix("Input ").removeprefix("Value error, ")
