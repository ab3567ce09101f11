"""Pydantic's errors of a spec as one line."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from trivium.config import expected
from trivium.errors import SpecError, did_you_mean, shorten


class FieldError(SpecError):
    """A field of a part, by its path in the spec ("encoder.num_layers"), and what is wrong."""

    def __init__(self, part: str, path: str, problem: str) -> None:
        super().__init__(f"{part}: {path}: {problem}" if path else f"{part}: {problem}")
        self.path, self.problem = path, problem


def field_error(part: str, error: ValidationError, known: Iterable[str] = ()) -> FieldError:
    """The first error of pydantic, with its path from the outermost part.

    `known` are the fields that an unknown one may have been meant for.
    """
    errors = error.errors()
    # Of a union such as Attention | tuple, the wrong type is an error of the other member.
    useful = [e for e in errors if e["type"] not in ("model_type", "tuple_type")]
    first = (useful or errors)[0]
    path = shorten(".".join(str(step) for step in first["loc"] if "[" not in str(step)), 100)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return FieldError(part, ".".join(filter(None, (path, cause.path))), cause.problem)
    if cause is not None:
        return FieldError(part, path, str(cause))
    if first["type"] == "extra_forbidden":
        near = did_you_mean(path, known) or f" Known: {', '.join(known)}."
        return FieldError(part, path, f"there is no such field.{near}")
    if first["type"] in ("no_such_kind", "kind_missing"):
        return FieldError(part, path, first["msg"])
    if first["type"] == "missing":
        return FieldError(part, path, "it is missing.")
    value = shorten(repr(first["input"]), 100)
    return FieldError(part, path, f"expected {expected(first)}, not {value}.")
