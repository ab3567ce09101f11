"""The JSON types that a schema allows, for values that are written without quotation marks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}


def resolve_schema(schema: Any, root: Schema) -> Schema:
    """Replace a `$ref` of the form `#/$defs/name` with the schema to which it refers.

    A single schema in `allOf` is resolved, too. All other schemas are returned unchanged. `root` is
    the schema that contains the definitions.
    """
    for _ in range(16):  # a reference may lead to another one
        if not isinstance(schema, Mapping):
            return {}
        if isinstance(schema.get("$ref"), str):
            target: Any = root
            for part in schema["$ref"].removeprefix("#/").split("/"):
                target = target.get(part) if isinstance(target, Mapping) else None
            schema = target
        elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
            schema = schema["allOf"][0]
        else:
            break
    return schema if isinstance(schema, Mapping) else {}


def find_members(schema: Schema, root: Schema) -> list[Schema]:
    """Return the alternatives of a schema with `anyOf` or `oneOf`, or else the schema itself."""
    schema = resolve_schema(schema, root)
    members = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(members, Sequence) or isinstance(members, str):
        return [schema]
    return [resolve_schema(member, root) for member in members]


def find_types(schema: Schema, root: Schema) -> set[str]:
    """Return the JSON types that a schema allows, or {"string"} if it specifies no types."""
    types = set[str]()
    for member in find_members(schema, root):
        named = member.get("type")
        types |= {named} if isinstance(named, str) else {*(named or ())}
        values = [*member.get("enum", ()), *([member["const"]] if "const" in member else ())]
        if named is None:
            types |= {_type_of(value) for value in values}
    return types or {"string"}


def read_value(text: str, schema: Schema, root: Schema) -> Any:
    """Parse a value without quotation marks according to its schema. Returns the value.

    The value is a string, unless the text is JSON of another type that the schema allows.

    >>> read_value("7", {"type": "integer"}, {}), read_value("7", {"type": "string"}, {})
    (7, '7')
    """
    types = find_types(schema, root)
    if text in _PYTHON_LITERALS:
        value = _PYTHON_LITERALS[text]
    else:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
    kind = _type_of(value)
    if kind != "string" and (kind in types or (kind == "integer" and "number" in types)):
        return value
    return text


def _type_of(value: Any) -> str:
    """Return the JSON type of a value."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case dict():
            return "object"
        case _:
            return "array"
