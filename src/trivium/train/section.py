"""What every table of a recipe is: frozen, checked, and told in one line where it is wrong."""

from __future__ import annotations

from typing import Annotated, Any, Self, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trivium.errors import RecipeError, did_you_mean
from trivium.spec import describe_validation

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A table of a recipe, or all of one. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_toml(self) -> str:
        """The keys as TOML; those that are None are left out."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_dict(cls, tree: dict[str, Any], *, source: str = "recipe") -> Self:
        """Check a tree. Raises RecipeError naming the key and the nearest one there is."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise RecipeError(f"{source}: {_describe(cls, error)}") from None


def _describe(model: type[BaseModel], error: ValidationError) -> str:
    """One line for the first problem; an unknown key gets the nearest known one."""
    whole = model
    first = error.errors()[0]
    if first["type"] != "extra_forbidden":
        return describe_validation(error)
    *path, key = (str(step) for step in first["loc"])
    for step in path:
        if not step.isdigit():
            model = _section_of(model.model_fields[step].annotation)
    dotted = ".".join([*path, key])
    suggestion = did_you_mean(key, model.model_fields)
    if not suggestion:
        suggestion = f" Known keys: {', '.join(model.model_fields)}."
        for name, field in whole.model_fields.items():
            section = field.annotation
            if not (isinstance(section, type) and issubclass(section, Section)):
                continue
            if key in section.model_fields:
                suggestion = f' Did you mean "{name}.{key}"?'
    return f'unknown key "{dotted}".{suggestion}'


def _section_of(annotation: Any) -> type[BaseModel]:
    """The section in an annotation: itself, or that of the tables in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_section_of(inner) for inner in get_args(annotation) if inner is not type(None))
