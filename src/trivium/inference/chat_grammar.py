"""Rules of Lark grammars for messages of the assistant: tool calls, reasoning and content.

The grammars are in llguidance's variant of the syntax of Lark: `%json` is JSON that follows a
schema, `<[5]>` is the token with the id 5, and `[suffix="x"]` ends a text at the first "x".
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence

from trivium.errors import TriviumError
from trivium.inference.constraint import json_rule, literal, output_rule
from trivium.inference.sampling_params import SamplingParams
from trivium.text import Tokenizer
from trivium.text.json_types import Schema, find_members, find_types
from trivium.text.reasoning import END_THINK, THINK
from trivium.text.tool_formats import ToolFormat

_ANY_TEXT = "/(?s:.*)/"


def content_rule(params: SamplingParams) -> str:
    """Return the right side of a rule for content that follows the constraint in `params`."""
    rule = output_rule(json_schema=params.json_schema, regex=params.regex, choices=params.choices)
    return rule or f"%lark {{\n{params.grammar}\n}}"


def call_rules(
    format: ToolFormat,
    functions: Mapping[str, Schema],
    tokenizer: Tokenizer,
    *,
    parallel: bool,
    after_marker: bool,
) -> list[str]:
    """Return the rules for calls. The first rule is `calls`.

    Args:
        format: the format of the calls.
        functions: the JSON schema of the arguments of each function, by the name of the function.
        tokenizer: the tokenizer of the text.
        parallel: whether there may be several calls.
        after_marker: whether the rule `before_call` of `text_rules` precedes the calls, which has
            already written the marker.
    """
    write = functools.partial(_write, tokenizer=tokenizer, names=format.names)
    rule = json_rule if format.has_json_arguments else _xml_rule
    opening, starts = format.opening, [format.before_arguments(name) for name in functions]
    if after_marker:
        opening = opening.removeprefix(format.marker)
        starts = [start.removeprefix(format.marker) for start in starts]
        parallel = parallel and bool(format.opening)  # other calls have markers of their own
    more = f"({write(format.separator)} call)*" if parallel and format.is_parallel else ""
    names = [f"call_{index}" for index in range(len(functions))]
    return [
        f"calls: {write(opening)} call {more} {write(format.closing)}",
        f"call: {' | '.join(names)}",
        *(
            f"{name}: {write(start)} {rule(schema)} {write(format.after_arguments)}"
            for name, start, schema in zip(names, starts, functions.values(), strict=True)
        ),
        *([] if format.has_json_arguments else _XML_RULES),
    ]


_XML_RULES = (
    r'string[suffix="\n</parameter>"]: /(?s:.*)/',
    'parameter: "<parameter=" /[a-zA-Z0-9_.-]+/ ">\\n" string "\\n"',
)
"""A string without quotation marks up to the end of its parameter, and any parameter."""


def _xml_rule(schema: Schema) -> str:
    """Return the right side of a rule for arguments in XML, in the order of the schema.

    Raises TriviumError if the schema of a string cannot be required without quotation marks.
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "parameter*"
    required, rules = schema.get("required") or (), []
    for name, value in properties.items():
        values = [
            each for member in find_members(value, schema) for each in _xml_values(member, schema)
        ]
        rule = (
            f"{literal(f'<parameter={name}>' + chr(10))} ({' | '.join(values)}) {literal(chr(10))}"
        )
        rules.append(rule if name in required else f"({rule})?")
    return " ".join(rules)


def _xml_values(schema: Schema, root: Schema) -> list[str]:
    """Return the alternatives for a value in XML, each with the end of its parameter."""
    types, end = find_types(schema, root), literal("\n</parameter>")
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return [f"{literal(text)} {end}" for text in texts]
    rules = ["string"] if "string" in types else []
    if "string" in types and (unknown := _STRING_KEYS & schema.keys()):
        raise TriviumError(
            f"the schema of a tool has {min(unknown)!r}, which cannot be required of a string in "
            "the XML of this model: leave it out."
        )
    if others := sorted(types - {"string"}):
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        rules.append(f"{json_rule({**definitions, **schema, 'type': others})} {end}")
    return rules


_STRING_KEYS = {"pattern", "format", "minLength", "maxLength"}


def text_rules(format: ToolFormat, tokenizer: Tokenizer) -> list[str]:
    """Return the rules for text that does not begin a call.

    The rule `text` is text without a call, and `before_call` is text up to the marker of a call.
    """
    marker, special = format.marker, tokenizer.special_tokens
    text = r"/(\s*[^\s{](?s:.*))?/" if format.begins_with_json else _ANY_TEXT
    if marker in special:
        return [f"text: TEXT?\nTEXT: {text}", f"before_call: TEXT? <[{special[marker]}]>"]
    marked = f"/(?s:.*){re.escape(marker)}(?s:.*)/"
    return [
        f"text: TEXT\nTEXT: {text} & ~{marked}",
        f"before_call[suffix={literal(marker)}]: {_ANY_TEXT}",
    ]


def reasoning_rules(tokenizer: Tokenizer, *, is_open: bool) -> list[str]:
    """Return the rules for reasoning. The first rule is `thinking`.

    `is_open` is whether the prompt has already begun the reasoning.
    """
    special = tokenizer.special_tokens
    start = "" if is_open else _write(THINK, tokenizer=tokenizer, names=(THINK,))
    rules = [rf"thinking: {start} reasoning /[ \n]{{0,4}}/"]
    if END_THINK in special:
        return [*rules, f"reasoning: {_ANY_TEXT} <[{special[END_THINK]}]>"]
    return [*rules, f"reasoning[suffix={literal(END_THINK)}]: {_ANY_TEXT}"]


def _write(text: str, *, tokenizer: Tokenizer, names: Sequence[str]) -> str:
    """Return a text as a sequence of literals and special tokens.

    `names` are the texts that are special tokens if the tokenizer has them.
    """
    special = next(
        (name for name in names if name in tokenizer.special_tokens and name in text), ""
    )
    if not special:
        return literal(text) if text else ""
    before, _, after = text.partition(special)
    write = functools.partial(_write, tokenizer=tokenizer, names=names)
    return f"{write(before)} <[{tokenizer.special_tokens[special]}]> {write(after)}"
