"""Base classes of the parts of models: `Part` for specs, `PartModule` for PyTorch modules."""

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
        part: the name of the outermost part (spec class).
        path: the path of the field from that part; empty: the error concerns the whole part.
        problem: a sentence that describes the error.
    """

    def __init__(self, part: str, path: str, problem: str) -> None:
        super().__init__(f"{part}: {path}: {problem}" if path else f"{part}: {problem}")
        self.path, self.problem = path, problem


def to_field_error(part: str, error: ValidationError, known: Iterable[str] = ()) -> FieldError:
    """Convert the first error in a pydantic ValidationError to a `FieldError`.

    `part` is the name of the outermost spec. `known` contains the names of its fields, from which
    the message for a misspelled name suggests a correction.
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
    """Base class of specs: frozen pydantic models, validated on creation, without extra fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            part = type(self)
            raise to_field_error(part.__name__, error, part.model_fields) from None

    @model_validator(mode="after")
    def _run_check(self) -> Self:
        """Call `check`, the validation across fields, after pydantic has validated each field."""
        self.check()
        return self

    def check(self) -> None:
        """Raise SpecError if the spec's fields contradict each other; subclasses override this."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the spec with some fields changed. The copy is validated again."""
        return type(self)(**{**dict(self), **changes})


class PartModule(nn.Module):
    """Base class of the PyTorch modules that are built from a `Part`."""

    parallel: ClassVar[Mapping[str, str]] = {}
    """How tensor parallelism divides linear layers and parameters (attribute name: "column" divides
    the outputs, "row" the inputs). Outputs of "row" matrices are added to the residual stream, so
    some initializations scale these matrices down or set them to zero."""

    non_matrices: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that optimizers do not treat as matrices, even if they have two axes:
    they get neither weight decay nor orthogonalization (Muon)."""

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the weights that need a special initialization; the default does nothing.

        It is called after the initialization of the whole model, and overrides it.
        """


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """Return an `nn.Embedding` with uninitialized weights [rows, width].

    `nn.Embedding` itself initializes its weights randomly. On the meta device, this triggers an
    import that takes seconds.
    """
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def num_weights(parameter: Tensor) -> int:
    """Return the number of weights in a parameter. bitsandbytes stores two 4-bit ones in a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the autocast dtype for the device of `x`, or `x.dtype` if autocast is disabled."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast `x` to the autocast dtype once, so that the layers that read `x` need not cast it."""
    return x.to(autocast_dtype(x))
