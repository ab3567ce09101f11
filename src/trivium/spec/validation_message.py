"""What pydantic found wrong in a spec, as one line."""

from __future__ import annotations

from pydantic import ValidationError

from trivium.errors import did_you_mean


def describe_validation(error: ValidationError, known: tuple[str, ...] = ()) -> str:
    """The first error of pydantic as one line: the field, what is wrong, the value.

    `known` are the fields that an unknown one may have been meant for.
    """
    errors = error.errors()
    # Of a union such as Attention | tuple, the wrong type is an error of the other member.
    useful = [e for e in errors if e["type"] not in ("model_type", "tuple_type")]
    first = (useful or errors)[0]
    where = ".".join(str(step) for step in first["loc"] if "[" not in str(step))
    cause = first.get("ctx", {}).get("error")
    if cause is not None:
        return f"{where}: {cause}" if where else str(cause)
    if first["type"] == "extra_forbidden":
        near = did_you_mean(where, known) or f" Known: {', '.join(known)}."
        return f'unknown field "{where}".{near}'
    value = repr(first["input"])
    value = value if len(value) <= 100 else f"{value[:97]}..."
    return f"{where or 'value'}: {first['msg']} (given: {value})."
