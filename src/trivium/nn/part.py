"""What every part is: a configuration that is frozen and checked, and a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

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


Count = Annotated[int, Field(gt=0, lt=2**31)]
NumLayers = Annotated[int, Field(gt=0, le=1000)]  # more fill the memory without weights
DropoutRate = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Deviation = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Part(BaseModel):
    """A frozen piece of a spec. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            part = type(self)
            raise field_error(part.__name__, error, part.model_fields) from None

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raise SpecError for fields that do not fit each other."""

    def replace(self, **changes: Any) -> Self:
        """The same part with some fields changed, checked again."""
        return type(self)(**{**dict(self), **changes})


class PartModule(nn.Module):
    """A module that is made of a part."""

    parallel: ClassVar[Mapping[str, str]] = {}
    """Linear layers, and weights of its own, that tensor parallelism divides by outputs ("column")
    or by inputs ("row"). What a "row" matrix makes is added to the residual stream: starts of
    weights make those smaller, or zero."""

    vectors: ClassVar[tuple[str, ...]] = ()
    """Weights of its own that are no matrices, whatever their shape: optimizers do not let them
    decay, nor make their steps orthogonal."""

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set or draw the weights whose start is its own, after all others were drawn."""


def empty_table(rows: int, width: int) -> nn.Embedding:
    """A table without numbers: on the meta device drawing some costs an import of seconds."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Autocast's precision where it is on, else that of `x`."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def to_autocast_dtype(x: Tensor) -> Tensor:
    """`x` as matrix products read it: cast once here, not again by every layer that reads it."""
    return x.to(autocast_dtype(x))
