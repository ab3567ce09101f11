"""The base class of recipe tables, their error messages, and functions for dotted keys."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trivium.choice import Choice
from trivium.errors import RecipeError, nearest_name, shorten

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

HF_KEY_NAMES = {
    "batch_size": ["batch_tokens", "batch_examples"],
    "gradient_accumulation_steps": ["micro_batch_tokens"],
    "hidden_size": ["d_model"],
    "learning_rate": ["lr"],
    "max_grad_norm": ["clip"],
    "max_length": ["length"],
    "max_seq_length": ["length"],
    "mlm_probability": ["probability"],
    "num_train_epochs": ["epochs"],
    "per_device_train_batch_size": ["batch_tokens", "batch_examples"],
    "warmup_steps": ["warmup"],
}
"""Argument names of `transformers`, with the recipe keys that error messages suggest instead."""


class Config(BaseModel):
    """Base class of the tables of a recipe. Fields are immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], *, where: str = "recipe") -> Self:
        """Create an instance of the class from a nested dict of plain values (parsed TOML).

        `where` names the source of the values, such as a file. Error messages start with it.

        Raises:
            RecipeError: keys are unknown or missing, or have invalid values. The message lists all
                of them.
        """
        if problems := cls.problems(tree):
            raise problems_to_error(where, problems)
        return cls.model_validate(tree)

    @classmethod
    def problems(cls, tree: Mapping[str, Any], *, partial: bool = False) -> list[str]:
        """Return an error message for each unknown, missing or invalid key of a nested dict.

        If `partial` is True, missing keys are not reported.
        """
        try:
            cls.model_validate(tree)
        except ValidationError as error:
            lines: dict[str, list[str]] = {}  # of `int | str` each member has its own error
            for one in error.errors():
                least = one.get("ctx", {}).get("min_length", 0)
                if one["type"] == "too_short" and len(one["input"]) >= least:
                    continue  # some of its members are wrong, which have errors of their own
                if not partial or one["type"] not in ("missing", "kind_missing"):
                    problem, allowed = _make_error_message(cls, tree, one)
                    lines.setdefault(problem, []).extend([allowed] if allowed else [])
            return [
                f"{problem}: expected {' or '.join(dict.fromkeys(allowed))}."
                if allowed
                else problem
                for problem, allowed in lines.items()
            ]
        return []

    def to_tree(self) -> dict[str, Any]:
        """Return the fields as a nested dict of plain values. Fields that are None are left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Return the fields as TOML text. Fields that are None are left out."""
        return tomli_w.dumps(self.to_tree())

    def replace(self, **values: Any) -> Self:
        """Return a validated copy of this configuration with new values for the given fields."""
        return type(self).model_validate({**dict(self), **values})


def option(default: Any, description: str, **more: Any) -> Any:
    """Return a dataclass field that also describes a command-line option.

    The field's metadata contains the description and the keyword arguments in `more`. `ge`, `gt`
    and `le` are bounds of the value. `min` and `max` replace `ge` and `le` on the command line.
    `unset` is a text that `--help` shows in place of the default value. If `unset` is False,
    `--help` shows no default.
    """
    return dataclasses.field(default=default, metadata={"description": description, **more})


def option_fields(params: type) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass, those of the class itself before inherited fields."""
    fields = dataclasses.fields(params)
    return sorted(fields, key=lambda field: field.name not in params.__annotations__)


def flatten_keys(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested dict. Returns a dict whose keys are dotted paths.

    >>> flatten_keys({"seed": 1, "train": {"steps": 5}})
    {'seed': 1, 'train.steps': 5}
    """
    values: dict[str, Any] = {}
    for name, value in tree.items():
        key = prefix + name
        values |= flatten_keys(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return values


def problems_to_error(where: str, problems: Sequence[str]) -> RecipeError:
    """Return one RecipeError that lists all problems. Several problems are on separate lines."""
    if len(problems) == 1:
        return RecipeError(f"{where}: {problems[0]}")
    return RecipeError("".join([f"{where}:", *(f"\n  {problem}" for problem in problems)]))


def merge_changes(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merge `changes` recursively into a nested dict, in place. A value of None removes the key.

    If `changes` gives a table another `kind`, the table loses all of its old keys. If the old value
    is a list of tables and the new value is a table, the new table is merged into each of them.
    """
    for key, value in changes.items():
        old = tree.get(key)
        if value is None:
            tree.pop(key, None)
        elif not isinstance(value, Mapping):
            tree[key] = value
        elif isinstance(old, list) and old and isinstance(old[0], dict):
            for table in old:
                merge_changes(table, value)
        else:
            if not isinstance(old, dict) or value.get("kind") not in (None, old.get("kind")):
                old = tree[key] = {}
            merge_changes(old, value)


class ConfigKey(NamedTuple):
    """The description of one key of a configuration class, for reference pages and suggestions."""

    name: str
    """The dotted key, such as "objective.probability"."""
    default: Any
    """The default value; None if the key is required or its default is derived."""
    description: str
    kind: str = ""
    """The kind of table that has the key, such as "masked"; empty if there is only one kind."""


def iter_keys(config: type[BaseModel], prefix: str = "", kind: str = "") -> Iterator[ConfigKey]:
    """Yield all keys of a configuration class and its nested tables, in the order of the fields.

    `prefix` is put before the names. `kind` is the kind of the table that contains the keys.
    """
    for name, field in config.model_fields.items():
        members = list(config_classes(field.annotation))
        if not members:
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            yield ConfigKey(prefix + name, default, field.description or "", kind)
        for member in members:
            own = str(member.model_fields["kind"].default) if "kind" in member.model_fields else ""
            yield from iter_keys(member, f"{prefix}{name}.", own if len(members) > 1 else kind)


def config_classes(annotation: Any) -> Iterator[type[Config]]:
    """Yield the `Config` classes in a type annotation, including unions, lists and choices."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        if issubclass(annotation, Choice) and not annotation.is_member():
            yield from annotation.kinds.values()
        else:
            yield annotation
    elif get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list):
        for inner in get_args(annotation):
            yield from config_classes(inner)


def _make_error_message(config: type[BaseModel], tree: Any, error: Any) -> tuple[str, str]:
    """Return a message for a pydantic error, and a description of the allowed value.

    The description is "" if the message is complete without it.
    """
    path, table, value = _locate_error(tree, error)
    key, context = ".".join(path), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return _make_unknown_key_message(config, tree, path, table, value), ""
        case "missing":
            return f'"{key}" is missing.', ""
        case "no_such_kind":
            allowed = f"{context['known']}.{context['near']}"
            return f'{key}.kind = "{context["kind"]}" is not one of {allowed}', ""
        case "kind_missing":
            return f'"{key}" needs a kind: {key}.kind is one of {context["known"]}.', ""
        case "list_type" | "tuple_type":
            kind_key = f"{_strip_indices(key)}.kind"
            kinds = [one.kind for one in iter_keys(config) if one.name == kind_key]
            such = f' of tables, such as [{{kind = "{kinds[0]}"}}]' if kinds else ""
            return f"{key} = {_format_value(value)}", f"a list{such}"
        case "value_error":
            message = str(error["msg"]).removeprefix("Value error, ")
            return f"{key}: {message}" if key else message, ""
        case _:
            return f"{key} = {_format_value(value)}", expected(error)


def expected(error: Any) -> str:
    """Describe the value that a pydantic error requires, such as "a number greater than 0"."""
    message, context = str(error["msg"]), error.get("ctx", {})
    match error["type"]:
        case "int_type" | "int_parsing" | "int_from_float":
            return "a whole number"
        case "float_type" | "float_parsing":
            return "a number"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "string_type":
            return "a text"
        case "dict_type" | "model_type" | "model_attributes_type" | "mapping_type":
            return "a table of keys"
        case "list_type" | "tuple_type":
            return "a list"
        case "string_pattern_mismatch":
            return f"a text that matches {context['pattern']}"
        case "too_short" | "string_too_short":
            return f"something of length {context['min_length']} or more"
        case "too_long" | "string_too_long":
            return f"something of length {context['max_length']} or less"
        case "literal_error":
            return context["expected"].replace("'", '"')
        case _ if message.startswith("Input should be"):
            allowed = message.removeprefix("Input should be ")
            return f"a number {allowed}" if "than" in allowed else allowed
        case _:
            return message


def _locate_error(tree: Any, error: Any) -> tuple[list[str], Any, Any]:
    """Locate a pydantic error in a nested dict. Returns the key's path, its table and its value.

    The location that pydantic gives also contains names of union members ("masked", "int"). These
    names are not keys, so the path omits them.
    """
    path: list[str] = []
    table, value = {}, tree
    for number, step in enumerate(error["loc"], start=1):
        is_missing = error["type"] == "missing" and number == len(error["loc"])
        if isinstance(step, int) and isinstance(value, Sequence) and step < len(value):
            path[-1] += f"[{step}]"
            value = value[step]
        elif isinstance(value, Mapping) and (step in value or is_missing):
            path.append(str(step))
            table, value = value, value.get(step)
    return path, table, value


def _strip_indices(key: str) -> str:
    """Remove list indices from a dotted key: "mix[0].objective.kind" gives "mix.objective.kind"."""
    return re.sub(r"\[\d+\]", "", key)


def _make_unknown_key_message(
    config: type[BaseModel], tree: Any, path: Sequence[str], table: Mapping[str, Any], value: Any
) -> str:
    """Return the error message for an unknown key, with the most similar known keys."""
    section = path[:-1]
    if isinstance(value, Mapping) and value and not section:  # an unknown section
        path = [*path, *islice(value, 1)]
    key, kind = shorten(".".join(path), 100), table.get("kind")
    namesakes = _find_keys_named(config, path[-1], listed=key.partition("[")[0])
    if kinds := [each.kind for each in namesakes if each.name == key]:
        where, allowed = ".".join(section), ", ".join(f'"{each}"' for each in kinds)
        return f'{key} is a key of {where}.kind = {allowed}, and this is "{kind}": leave it out.'
    known = _list_section_keys(config, section, kind)
    near = [each.name for each in namesakes if _find_kind(tree, each) in (None, each.kind)] or [
        ".".join([*section, name]) for name in _find_similar_names(path[len(section)], known)
    ]
    if near:
        return f'unknown key "{key}". Did you mean {" or ".join([*dict.fromkeys(near)][:3])}?'
    return f'unknown key "{key}". Known keys there: {", ".join(sorted(known))}.'


def _find_keys_named(config: type[BaseModel], name: str, *, listed: str) -> list[ConfigKey]:
    """Return the keys of all sections that have `name` as their last component.

    If there are none, return the keys that correspond to `name` in `HF_KEY_NAMES`. If `listed` is a
    list of tables ("mix" or "phases"), only keys of these tables are returned, otherwise only other
    keys.
    """
    tables = {key: key.name.partition(".")[0] for key in iter_keys(config)}
    lists = ("mix", "phases")
    wanted = listed if listed in lists else ""
    keys = [key for key, table in tables.items() if (table if table in lists else "") == wanted]
    for names in ([name], HF_KEY_NAMES.get(name, [])):
        if found := [key for key in keys if key.name.rpartition(".")[2] in names]:
            return found
    return []


def _find_kind(tree: Any, key: ConfigKey) -> str | None:
    """Return the `kind` of the table that contains a key, or None if `tree` does not set it."""
    *section, _ = key.name.split(".")
    for step in (*section, "kind"):
        tree = tree.get(step) if isinstance(tree, Mapping) else None
    return tree


def _list_section_keys(config: type[BaseModel], section: Sequence[str], kind: Any) -> set[str]:
    """Return the names of the keys that a section of the given kind can contain.

    If `section` is empty, return the names of the top-level keys.
    """
    if not section:
        return {*config.model_fields}
    prefix = _strip_indices("".join(f"{step}." for step in section))
    inside = [key for key in iter_keys(config) if key.name.startswith(prefix)]
    return {
        key.name.removeprefix(prefix).partition(".")[0] for key in inside if key.kind in ("", kind)
    }


def _find_similar_names(name: str, known: Collection[str]) -> list[str]:
    """Return the most similar known name, then the known names that share its first word.

    The first word ends at the first underscore.
    """
    word, _, rest = name.partition("_")
    same_word = sorted(each for each in known if rest and each.startswith(f"{word}_"))
    return [*nearest_name(name, known), *same_word]


def _format_value(value: Any) -> str:
    """Format a value for an error message: strings in quotes, cut to 200 characters."""
    return shorten(f'"{value}"' if isinstance(value, str) else repr(value), 200)
