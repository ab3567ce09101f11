"""What goes wrong, in the one shape that clients of OpenAI read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from trivium.errors import TriviumError

CLIENT_GONE = 499
"""What the log says of a request whose client went away before its answer."""

_SHOWN, _LONGEST_NAME = 3, 100
_WHERE = ("body", "query", "path")
_INVALID = "invalid_request_error"
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: for the person who asked.
        param: the field of the request that is wrong.
        code: a word that programs compare.
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
        usual = _INVALID if self.status < 500 else "server_error"
        told = {
            "message": str(self),
            "type": _KINDS.get(self.status, usual),
            "param": self.param,
            "code": self.code,
        }
        return {"error": told}

    def response(self) -> JSONResponse:
        """The answer itself."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def as_api_error(error: Exception) -> ApiError:
    """An error of ours, of the framework or of nobody, as what the client is told."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _invalid(error.errors())
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case TriviumError():
            return ApiError(400, str(error))
        case _:
            return ApiError(500, "the server failed; its log says where.", code="internal_error")


def add_handlers(app: FastAPI) -> None:
    """Let every error of an app be told in this shape."""

    async def tell(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    for kind in (ApiError, RequestValidationError, HTTPException, TriviumError, Exception):
        app.add_exception_handler(kind, tell)


def _invalid(found: Sequence[Mapping[str, Any]]) -> ApiError:
    """400 for a body that is no JSON or does not fit; what was given is not repeated."""
    first = found[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is no JSON: {reason}.", code="invalid_json")
    told: dict[str, list[str]] = {}
    for each in found:
        messages = told.setdefault(_place(each), [])
        message = each["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if message not in messages:
            messages.append(message)
    lines = [f"{place}{' or '.join(messages)}" for place, messages in told.items()]
    more = f" ({len(lines) - _SHOWN} more)" if len(lines) > _SHOWN else ""
    names = [part for part in first["loc"] if part not in _WHERE]
    param = _plain(names[0]) if names else None
    return ApiError(400, "; ".join(lines[:_SHOWN]) + more, param=param)


def _place(found: Mapping[str, Any]) -> str:
    """The field that is wrong, with places in lists, without the kinds it might have had."""
    name, *others = [part for part in found["loc"] if part not in _WHERE] or [""]
    places = "".join(f"[{part}]" for part in others if isinstance(part, int))
    return f"{_plain(name)}{places}: " if name else ""


def _plain(name: Any) -> str:
    """The name of a field that a client made up, as something to answer with."""
    return str(name)[:_LONGEST_NAME].encode("utf-8", "backslashreplace").decode()
