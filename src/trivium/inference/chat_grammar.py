"""Rules of Lark grammars for messages of the assistant: tool calls, reasoning and content.

The grammars are in llguidance's variant of the syntax of Lark: `%json` is JSON that follows a
schema, `<[5]>` is the token with the id 5, and `[suffix="x"]` ends a text at the first "x".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.inference.constraint import json_rule, literal, output_rule
from trivium.inference.sampling_params import SamplingParams
from trivium.text import Tokenizer
from trivium.text.reasoning import END_THINK, THINK
from trivium.text.tool_formats import ToolFormat

_ANY_TEXT = "/(?s:.*)/"


def content_rule(params: SamplingParams) -> str:
    """Return the right side of a rule for content that follows the constraint in `params`."""
    rule = output_rule(json_schema=params.json_schema, regex=params.regex, choices=params.choices)
    return rule or f"%lark {{\n{params.grammar}\n}}"


def call_rules(
    format: ToolFormat,
    functions: Mapping[str, Mapping[str, Any]],
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
            f"{name}: {write(start)} {json_rule(schema)} {write(format.after_arguments)}"
            for name, start, schema in zip(names, starts, functions.values(), strict=True)
        ),
    ]


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
