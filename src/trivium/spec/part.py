"""What every part of a spec is: frozen and checked."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trivium.spec.validation_message import field_error

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
