"""Tagged unions of pydantic models, discriminated by `kind`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from trivium.errors import TriviumError, did_you_mean, shorten


class Choice(BaseModel):
    """Base class of tagged unions discriminated by `kind`, such as `Mixer` or `Objective`.

    A subclass that does not set `kind`, such as `Mixer`, is a choice. A subclass that sets
    `kind: Literal["name"] = "name"` is registered as a member of every choice that it inherits
    from. Two members of a choice cannot have the same kind. A class whose kind is None is not
    registered. A field that holds a member of `Mixer` is annotated `SerializeAsAny[Mixer]`.
    """

    kind: Any
    """The name that selects a member class; every member sets it to a literal string."""
    kinds: ClassVar[dict[str, type[Any]]]
    """The member classes of the choice, by their `kind`."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Register a member class in the choices that it inherits from.

        Raises:
            TriviumError: another class of the same choice has this `kind`.
        """
        if not cls.is_member():
            cls.kinds = {}
            return
        if (kind := cls.model_fields["kind"].default) is None:
            return
        for choice in (each for each in cls.__mro__ if "kinds" in vars(each)):
            other = choice.kinds.get(kind, cls)
            if other.__qualname__ != cls.__qualname__:  # the same name is a class defined again
                raise TriviumError(
                    f'{cls.__name__} and {other.__name__} are both of kind "{kind}": give one of '
                    "them another."
                )
            choice.kinds[kind] = cls

    @classmethod
    def is_member(cls) -> bool:
        """Return whether the class is a member (it sets `kind`) and not a choice."""
        return not cls.model_fields["kind"].is_required()

    @model_validator(mode="wrap")
    @classmethod
    def _validate_member(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate a dict with the member class that its key `kind` selects."""
        if cls.is_member() or not isinstance(data, Mapping):
            return validate(data)
        kind = data.get("kind")
        if isinstance(kind, str) and kind in cls.kinds:
            return cls.kinds[kind].model_validate(data)
        known = ", ".join(f'"{name}"' for name in sorted(cls.kinds))
        if "kind" not in data:
            raise PydanticCustomError(
                "kind_missing", "its kind is missing; allowed: {known}.", {"known": known}
            )
        near = did_you_mean(str(kind), cls.kinds)
        raise PydanticCustomError(
            "no_such_kind",
            'there is no kind "{kind}"; allowed: {known}.{near}',
            {"kind": shorten(str(kind), 100), "known": known, "near": near},
        )


def import_submodules(package: str, path: Iterable[str]) -> list[Any]:
    """Import all modules of a package, which registers the `Choice` members that they define.

    Returns the modules, sorted by name. `path` is the `__path__` of the package.
    """
    names = sorted(module.name for module in iter_modules(path))
    return [import_module(f"{package}.{name}") for name in names]
