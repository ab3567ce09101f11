"""Reading tool calls and reasoning out of generated texts, in the formats of published models."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tool_templates import TEMPLATES, WEATHER, call
from transformers.utils.chat_parsing import parse_response
from trl.chat_template_utils import llama3_template, qwen3_5_template, qwen3_template

from trivium.errors import TokenizerError
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate, parse_arguments
from trivium.text.json_types import read_value
from trivium.text.reasoning import ReasoningReader, opens_reasoning
from trivium.text.tool_formats import (
    TOOL_FORMATS,
    ToolCall,
    ToolCallReader,
    ToolFormat,
    find_tool_format,
)

FORMATS: dict[str, ToolFormat] = {each.name: each for each in TOOL_FORMATS}
HERMES, LLAMA, MISTRAL, ARGS, XML = FORMATS
F = '{"name": "f", "arguments": {"x": 1}}'
G = '{"name": "g", "arguments": {"y": ["a", {"b": "}"}]}}'
FX = "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
GX = (
    "<tool_call>\n<function=g>\n<parameter=y>\na\n\n</parameter>\n"
    "<parameter=z></tool_call></parameter>\n</function>\n</tool_call>"
)
CALLS = [("f", {"x": 1}), ("g", {"y": ["a", {"b": "}"}]})]


def read(
    format: ToolFormat, *pieces: str, functions: dict[str, Any] | None = None
) -> tuple[str, list[ToolCall]]:
    reader, content, calls = ToolCallReader(format, functions), "", []
    for piece, is_last in [*((piece, False) for piece in pieces), ("", True)]:
        more, new = reader.push(piece, is_last=is_last)
        content, calls = content + more, calls + new
    return content, calls


def divide(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(len(text) + 2)))
    return [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)])]


PUBLISHED = {
    "llama3_1": LLAMA,
    "llama3_2": LLAMA,
    "qwen2_5": HERMES,
    "qwen3": HERMES,
    "qwen3_instruct_2507": HERMES,
    "qwen3_vl": HERMES,
    "qwen3_5_think": XML,
    "qwen3_6": XML,
    "nemotron_3_nano": XML,
    "glm4moe": r"<tool_call>f\\n<arg_key>x</arg_key>",
    "gptoss": "to=functions.f",
    "gemma4": "call:f",
    "lfm2": "does not render a message with a call: it leaves the call out",
    "deepseek_r1_distill": "does not render tools",
    "llama3": "does not render tools",
}


def published_template(name: str) -> ChatTemplate:
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "chat_templates" / f"{name}.jinja"
    return ChatTemplate(file.read_text(encoding="utf-8"), {"eos_token": "</s>"})


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_formats_of_published_templates(name):
    expected, template = PUBLISHED[name], published_template(name)
    if expected in FORMATS:
        assert find_tool_format(template).name == expected
        return
    with pytest.raises(TokenizerError, match=expected):
        find_tool_format(template)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hermes", HERMES),
        ("thinking", HERMES),
        ("open-thinking", HERMES),
        ("llama", LLAMA),
        ("mistral", MISTRAL),
        ("mistral-args", ARGS),
        ("qwen-xml", XML),
    ],
)
def test_what_a_template_writes_is_read_back(name, expected):
    template = ChatTemplate(TEMPLATES[name], {})
    format = find_tool_format(template)
    assert format.name == expected
    arguments = {"city": 'Rome </tool_call> "}] é', "days": 3}
    calls = [call("weather", arguments, 1), call("clock", {}, 2)]
    calls = calls if format.is_parallel else calls[:1]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    text, spans = template.get_turns(messages, tools=[WEATHER])
    reasoning = ReasoningReader(is_open=name == "open-thinking")
    _, turn = reasoning.push(text[slice(*spans[-1])].partition("<e>")[0], is_last=True)
    content, found = read(format, *turn, functions={"weather": WEATHER["function"]["parameters"]})
    assert content == ""
    assert [(one.name, one.arguments) for one in found] == [
        (one["function"]["name"], one["function"]["arguments"]) for one in calls
    ]
    # The calls as a message of the conversation give the same text.
    again = [parse_arguments({**messages[1], "tool_calls": [one.to_dict() for one in found]})]
    if name != "mistral":  # whose template writes the ids
        assert template.get_turns([messages[0], *again], tools=[WEATHER])[0] == text


def test_an_unknown_format_is_shown():
    message = (
        r"a call of f with x = y is written as '\[f\(x=1\)\]<e>'. The formats that can be read"
    )
    with pytest.raises(TokenizerError, match=message):
        find_tool_format(ChatTemplate(TEMPLATES["pythonic"], {}))
    assert find_tool_format(ChatTemplate(PLAIN_TEMPLATE, {"eos_token": "<e>"})).name == HERMES


READ = [
    (HERMES, f"<tool_call>\n{F}\n</tool_call>\n<tool_call>{G}</tool_call>\n", "", CALLS),
    (HERMES, f"I see.\n\n<tool_call>{F}</tool_call>\n", "I see.", CALLS[:1]),
    (HERMES, f"I see. <tool_call>{F}</tool_call> Well.", "I see. Well.", CALLS[:1]),
    (HERMES, f" \n<tool_call>{F} ", "", CALLS[:1]),
    (LLAMA, F.replace("arguments", "parameters"), "", CALLS[:1]),
    (LLAMA, "\n<|python_tag|>" + F.replace("arguments", "parameters"), "", CALLS[:1]),
    (LLAMA, "Yes: <|python_tag|>" + F.replace("arguments", "parameters"), "Yes:", CALLS[:1]),
    (LLAMA, f"{F}; {G}".replace("arguments", "parameters"), "", CALLS),
    (MISTRAL, f"[TOOL_CALLS] [{F}, {G}]", "", CALLS),
    (MISTRAL, f"So[TOOL_CALLS][{F}]", "So", CALLS[:1]),
    (ARGS, '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS] ' + G[27:-1], "", CALLS),
    (
        XML,
        f"I see.\n{FX}\n{GX}",
        "I see.",
        [("f", {"x": "1"}), ("g", {"y": "a\n", "z": "</tool_call>"})],
    ),
    (XML, FX.removesuffix("</tool_call>"), "", [("f", {"x": "1"})]),
    (XML, "<tool_call><function=f></function></tool_call>", "", [("f", {})]),
    (ARGS, 'So [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"x": 1}', "So", CALLS[:1]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), READ)
def test_calls_are_read(name, text, content, calls):
    found = read(FORMATS[name], text)
    assert (found[0], [(one.name, one.arguments) for one in found[1]]) == (content, calls)
    assert len({one.id for one in found[1]}) == len(calls)
    for one in found[1]:
        assert len(one.id) == 9
        assert json.loads(one.to_dict()["function"]["arguments"]) == one.arguments
    if "CALL_ID" in text:
        assert found[1][0].id == "123456789"


STAYS = [
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>'),  # a bracket is missing
    (HERMES, '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "parameters": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>'),
    (HERMES, r'<tool_call>{"name": "f", "arguments": {"x": "\ud800"}}</tool_call>'),
    (HERMES, f"<tool_call>{F} and</tool_call>"),
    (HERMES, f"<tool_call>[{F}]</tool_call>"),
    (HERMES, "<tool_call>" + "[" * 100_000),
    (HERMES, F),
    (HERMES, "  a <tool_ca"),
    (LLAMA, F),
    (LLAMA, "It is " + F.replace("arguments", "parameters")),
    (LLAMA, ' {"name": "f"} '),
    (LLAMA, "<|python_tag|>print(1)"),
    (MISTRAL, f"[TOOL_CALLS] {F}"),
    (MISTRAL, f"[TOOL_CALLS] [{F}, 3]"),
    (MISTRAL, "[TOOL_CALLS] []"),
    (MISTRAL, f"[{F}]"),
    (XML, f"<tool_call>{F}</tool_call>"),
    (XML, FX.replace("</parameter>", "")),
    (XML, FX.replace("</function>", "")),
    (XML, FX.replace("function=f", "function=f g")),
    (XML, FX.replace("</tool_call>", "!")),
    (XML, FX.replace("<tool_call>", "")),
    (XML, FX[:30]),
    (ARGS, f"[TOOL_CALLS] [{F}]"),
    (ARGS, "[TOOL_CALLS]f[ARGS]3"),
    (ARGS, "[TOOL_CALLS]f and g[ARGS]{}"),
]


@pytest.mark.parametrize(("name", "text"), STAYS)
def test_a_malformed_call_stays_text(name, text):
    assert read(FORMATS[name], text) == (text, [])
    assert read(FORMATS[name], *text[:300], text[300:]) == (text, [])


def test_calls_after_a_malformed_call_are_read():
    text = f'<tool_call>{{"name": "f}}</tool_call> <tool_call>{F}</tool_call>'
    content, calls = read(FORMATS[HERMES], text)
    assert content == '<tool_call>{"name": "f}</tool_call>'
    assert [one.name for one in calls] == ["f"]


def test_the_pieces_of_a_text_do_not_matter():
    rng, calls = random.Random(0), 0
    parts = [
        *("<tool_call>", "</tool_call>", F, G, f"[{F}]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        *('{"name"', '"', " ", "\n", "hello", "<", "<tool", "f", "{}", "[", "}", "]", ";", "\\"),
        *("<|python_tag|>", "<|py", F.replace("arguments", "parameters"), "é", FX, GX, FX[:40]),
    ]
    for _ in range(3000):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(9)))
        for format in TOOL_FORMATS:
            content, found = read(format, text)
            other, again = read(format, *divide(text, rng))
            assert content == other, (format.name, text)
            assert [(o.name, o.arguments) for o in found] == [(o.name, o.arguments) for o in again]
            assert found or content == text, (format.name, text)
            calls += len(found)
    assert calls > 100


REASONING = [
    ("<think>\nWell.\n</think>\n\nYes.", False, ("Well.", "Yes.")),
    ("\n<think>a</think>b<think>c</think>", False, ("a", "b<think>c</think>")),
    ("Well.\n</think>\n\nYes.", True, ("Well.", "Yes.")),
    ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
    ("<think>Well. </thin", False, ("Well. </thin", "")),
    ("Well.\n", True, ("Well.\n", "")),
    (" Yes. <think>a</think>", False, ("", " Yes. <think>a</think>")),
    (" <thin", False, ("", " <thin")),
    ("Yes.</think>", False, ("", "Yes.</think>")),
]


@pytest.mark.parametrize(("text", "is_open", "expected"), REASONING)
def test_reasoning_is_separated(text, is_open, expected):
    assert ReasoningReader(is_open=is_open).push(text, is_last=True) == expected
    rng = random.Random(1)
    for pieces in (text, *(divide(text, rng) for _ in range(20))):
        reader = ReasoningReader(is_open=is_open)
        parts = [*(reader.push(piece) for piece in pieces), reader.push("", is_last=True)]
        assert tuple(map("".join, zip(*parts))) == expected


def test_a_prompt_may_open_the_reasoning():
    messages = [{"role": "user", "content": "<think>"}]
    prompts = {
        name: ChatTemplate(TEMPLATES[name], {}).render(messages, add_generation_prompt=True)
        for name in ("thinking", "open-thinking")
    }
    assert opens_reasoning(prompts["open-thinking"])
    assert not opens_reasoning(prompts["thinking"])


RESPONSES = [
    f"<tool_call>\n{F}\n</tool_call>",
    f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>",
    f"Let me see.\n<tool_call>\n{F}\n</tool_call>",
    f"<think>\nWhich one?\n</think>\n\n<tool_call>\n{F}\n</tool_call>",
    f"<think>\nWhich one?\n</think>\n\nThat one.\n<tool_call>\n{G}\n</tool_call>",
    "<think>\nWhich one?\n</think>\n\nThat one.",
    "Just text: {}",
]


@pytest.mark.parametrize("response", RESPONSES)
def test_responses_of_qwen_are_read_as_by_transformers(response):
    cases = [("<|im_start|>assistant\n", response)]
    if response.startswith("<think>"):
        cases.append((f"{cases[0][0]}<think>\n", response.removeprefix("<think>\n")))
    for prompt, text in cases:
        expected = parse_response(f"{text}<|im_end|>", qwen3_template, prefix=prompt)
        check_parts(FORMATS[HERMES], text, expected, is_open=opens_reasoning(prompt))


@pytest.mark.parametrize("response", [F.replace("arguments", "parameters"), "Just text: {}"])
def test_responses_of_llama_are_read_as_by_transformers(response):
    prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    expected = parse_response(f"{response}<|eot_id|>", llama3_template, prefix=prompt)
    check_parts(FORMATS[LLAMA], response, expected, is_open=False)


TYPED = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "object": {"type": "object"},
        "kind": {"enum": ["a", "1"]},
    },
}
VALUES = [
    {"text": "7", "count": "7"},
    {"text": "true", "flag": "true"},
    {"text": "two\nlines", "items": "[1, 2]"},
    {"text": '{"a": 1}', "object": '{"a": 1}'},
    {"ratio": "2.5", "kind": "1"},
    {"text": "", "ratio": "3"},
]


@pytest.mark.parametrize("values", VALUES)
def test_arguments_in_xml_have_the_types_of_transformers(values):
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    text = f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"
    prompt, function = "<|im_start|>assistant\n", {"name": "f", "parameters": TYPED}
    tools = [{"type": "function", "function": function}]
    expected = parse_response(f"{text}<|im_end|>", qwen3_5_template, prefix=prompt, tools=tools)
    check_parts(FORMATS[XML], text, expected, is_open=False, functions={"f": TYPED})


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "7", "7"),
        ({"$ref": "#/$defs/Count"}, "7", 7),
        ({"allOf": [{"$ref": "#/$defs/Count"}]}, "7", 7),
        ({"$ref": "#/$defs/none"}, "7", "7"),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"enum": [1, "b"]}, "1", 1),
        ({"const": 2}, "2", 2),
        ({"type": "boolean"}, "True", True),
        ({"type": "integer"}, "seven", "seven"),
        ({}, '{"a": 1}', '{"a": 1}'),
    ],
)
def test_values_without_quotation_marks(schema, text, value):
    assert read_value(text, schema, {"$defs": {"Count": {"type": "integer"}}}) == value


def check_parts(
    format: ToolFormat,
    text: str,
    expected: dict[str, Any],
    *,
    is_open: bool,
    functions: dict[str, Any] | None = None,
) -> None:
    reasoning, rest = ReasoningReader(is_open=is_open).push(text, is_last=True)
    content, calls = read(format, rest, functions=functions)
    assert reasoning == expected.get("reasoning_content", "").strip()
    assert content == expected.get("content", "").strip()
    assert [(one.name, one.arguments) for one in calls] == [
        (one["function"]["name"], one["function"]["arguments"])
        for one in expected.get("tool_calls", [])
    ]
