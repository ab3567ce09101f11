"""What every part of a spec is: frozen, checked, and of a choice found by its `kind`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from trivium.errors import SpecError, did_you_mean
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

    def replace(self, **changes: Any) -> Self:
        """The same part with some fields changed, checked again."""
        return type(self)(**{**dict(self), **changes})


class Choice(Part):
    """A part of which there are several kinds, such as `Mixer` or `Positions`.

    A class with `kind: Literal["name"] = "name"` is a member of every choice that it inherits from,
    by being defined; no list names it. A kind belongs to one class. Of kind None it is found by
    none. Fields of a choice are written `SerializeAsAny[Mixer]`.
    """

    kind: Any
    kinds: ClassVar[dict[str, type[Any]]]
    """The members of the choice, by kind."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if not cls._is_member():
            cls.kinds = {}
            return
        if (kind := cls.model_fields["kind"].default) is None:
            return
        for choice in (each for each in cls.__mro__ if "kinds" in vars(each)):
            other = choice.kinds.get(kind, cls)
            if other.__qualname__ != cls.__qualname__:  # the same name is a class defined again
                raise SpecError(
                    f'{cls.__name__} and {other.__name__} are both of kind "{kind}": give one of '
                    "them another."
                )
            choice.kinds[kind] = cls

    @classmethod
    def _is_member(cls) -> bool:
        return not cls.model_fields["kind"].is_required()

    @model_validator(mode="wrap")
    @classmethod
    def _member(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """A table with a kind becomes the member of that kind."""
        if cls._is_member() or not isinstance(data, Mapping):
            return validate(data)
        kind = data.get("kind")
        if not isinstance(kind, str) or kind not in cls.kinds:
            known = ", ".join(f'"{name}"' for name in cls.kinds)
            wrong = f"there is no kind {kind!r}" if "kind" in data else "its kind is missing"
            raise SpecError(f"{wrong}; allowed: {known}.{did_you_mean(str(kind), cls.kinds)}")
        return cls.kinds[kind](**data)


def import_members(package: str, path: Iterable[str]) -> list[Any]:
    """Every module of a package, imported: what they define is registered by being defined."""
    names = sorted(module.name for module in iter_modules(path))
    return [import_module(f"{package}.{name}") for name in names]
