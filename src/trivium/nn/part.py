"""Base classes of the parts of models: `Part` for specs and `PartModule` for their modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from trivium.config import expected
from trivium.errors import SpecError, did_you_mean, shorten


class FieldError(SpecError):
    """Error in a field of a spec, with the path of the field ("encoder.num_layers").

    Args:
        part: the name of the outermost part.
        path: the path of the field from that part; empty: the part as a whole.
        problem: the sentence that says what is wrong.
    """

    def __init__(self, part: str, path: str, problem: str) -> None:
        super().__init__(f"{part}: {path}: {problem}" if path else f"{part}: {problem}")
        self.path, self.problem = path, problem


def to_field_error(part: str, error: ValidationError, known: Iterable[str] = ()) -> FieldError:
    """Convert the first error of pydantic to a `FieldError` with the path from the outermost part.

    `known` contains the names of the existing fields, from which a misspelt name is corrected.
    """
    errors = error.errors()
    # For a union such as Attention | tuple, pydantic also reports that the other type is wrong.
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
NumLayers = Annotated[int, Field(gt=0, le=1000)]  # more layers fill the memory even without weights
DropoutRate = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
StandardDeviation = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Part(BaseModel):
    """Base class of specs: a frozen, validated pydantic model. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            part = type(self)
            raise to_field_error(part.__name__, error, part.model_fields) from None

    @model_validator(mode="after")
    def _run_check(self) -> Self:
        """Call `check` after pydantic has validated the fields."""
        self.check()
        return self

    def check(self) -> None:
        """Raise SpecError if the fields contradict each other; subclasses override this method."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the part with some fields changed, validated again."""
        return type(self)(**{**dict(self), **changes})


class PartModule(nn.Module):
    """Base class of modules that are built from a part."""

    parallel: ClassVar[Mapping[str, str]] = {}
    """How tensor parallelism divides linear layers and parameters, by attribute name: by outputs
    ("column") or by inputs ("row"). The outputs of "row" matrices are added to the residual stream,
    so some initializations scale these matrices down or set them to zero."""

    non_matrices: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that are not matrices, whatever their shape: optimizers apply neither
    weight decay nor orthogonalisation (Muon) to them."""

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the weights that need a special initialization, after all other weights."""


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """Return an uninitialized embedding of shape [rows, width].

    Unlike `nn.Embedding`, this function draws no weights: on the meta device, drawing weights
    triggers an import that takes seconds.
    """
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of autocast on the device of `x` if it is enabled, else the dtype of `x`."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast `x` to the dtype of matmuls, once instead of again in every layer that reads `x`."""
    return x.to(autocast_dtype(x))
