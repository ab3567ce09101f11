"""Answers of models with chat templates: tool calls, reasoning, and constraints on them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tool_templates import CLOCK, TEMPLATES, WEATHER

sys.path.insert(0, str(Path(__file__).parent.parent / "serve"))
from serving import TEXT, transformer

from trivium.errors import TokenizerError, TriviumError
from trivium.inference.chat_turn import ChatTurn
from trivium.inference.constraint import Constraint
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.speculative import PromptLookup
from trivium.inference.text_stream import TextStream
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.spec import LMHead
from trivium.text import Tokenizer

READABLE = [name for name in TEMPLATES if name != "pythonic"]
USER = {"role": "user", "content": "How is it in Rome?"}
SPECIAL = ["<|endoftext|>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", "<tool_call>", "<e>"]
NAMED = {"type": "function", "function": {"name": "weather"}}


def make(template: str, *special: str) -> LanguageModel:
    tokenizer = Tokenizer.train(
        "byte-bpe",
        texts=TEXT * 5,
        vocab_size=300 + len(special),
        special_tokens=["<|endoftext|>", *special],
        progress=False,
    )
    lm = transformer(300 + len(special), "decoder", (LMHead(tied=True),), 2027)
    settings = Settings(chat_template=TEMPLATES[template])
    return LanguageModel(lm.spec, lm.module, tokenizer, settings)


@pytest.fixture(scope="module")
def models():
    return {name: make(name) for name in TEMPLATES}


def write(lm: LanguageModel, text: str, **options: Any) -> Any:
    """Generate exactly one text, which the model would not write by itself."""
    turn = ChatTurn(lm, [USER], tools=[WEATHER, CLOCK], **options)
    request = turn.request(lm.sampling_params(turn.prompt_ids, {"max_new_tokens": 300}))
    ids = iter(lm.text_tokenizer.reading("special").encode(text, add_special_tokens=False).ids)
    written = GenerationRequest(
        turn.prompt_ids,
        request.params,
        answers=True,
        shown_ids=request.shown_ids,
        is_complete=request.is_complete,
    )
    stream = TextStream(lm.text_tokenizer, turn.prompt_ids, shown_ids=request.shown_ids)
    for token_id in ids:
        piece = stream.push(token_id)
        written.text += piece
        if written.is_complete is not None and written.is_complete(piece):
            break
    written.finish_reason = "stop"
    return turn.read(written)


def check_calls(calls: Any) -> None:
    assert calls
    for one in calls:
        tool = {"weather": WEATHER, "clock": CLOCK}[one.name]
        jsonschema.validate(one.arguments, tool["function"]["parameters"])


@pytest.mark.parametrize("name", [name for name in READABLE if name != "open-thinking"])
def test_required_calls_follow_the_schemas(name, models):
    variables = {"enable_thinking": False}
    options = {"tools": [WEATHER, CLOCK], "temperature": 3.0, "chat_template_kwargs": variables}
    for seed in range(3):
        answer = models[name].chat([USER], tool_choice="required", seed=seed, **options)
        if answer.finish_reason == "tool_calls":
            check_calls(answer.tool_calls)
            assert not answer.content
        else:
            assert answer.finish_reason == "length"
        named = models[name].chat([USER], tool_choice=NAMED, seed=seed, **options)
        assert [one.name for one in named.tool_calls] == ["weather"]
        check_calls(named.tool_calls)


@pytest.mark.parametrize("name", ["hermes", "mistral", "mistral-args", "qwen-xml"])
def test_parallel_calls(name, models):
    def counts(**options: Any) -> set[int]:
        answers = [
            models[name].chat([USER], tools=[CLOCK], tool_choice="required", seed=seed, **options)
            for seed in range(8)
        ]
        return {len(answer.tool_calls) for answer in answers}

    assert max(counts()) > 1
    assert counts(parallel_tool_calls=False) == {1}


def test_an_answer_continues_the_conversation(models):
    for name in READABLE:
        if name == "open-thinking":
            continue
        lm, options = models[name], {"tools": [CLOCK], "tool_choice": "required", "seed": 1}
        answer = lm.chat([USER], parallel_tool_calls=False, **options)
        (call,) = answer.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "noon"}
        history = [USER, answer.to_message(), result]
        assert lm.chat(history, tools=[CLOCK], max_new_tokens=3).finish_reason == "length"
        text = lm.tokenizer.decode(ChatTurn(lm, history, tools=[CLOCK]).prompt_ids)
        assert "<t>noon<e>" in text
        arguments = "parameters" if name == "llama" else "arguments"
        expected = '"clock", "arguments": {}'.replace("arguments", arguments)
        others = {"mistral-args": "clock[ARGS]{}", "qwen-xml": "<function=clock>\n</function>"}
        assert others.get(name, expected) in text


def test_special_tokens_of_a_format_are_part_of_the_text():
    lm = make("mistral-args", *SPECIAL[1:])
    text = '<think>So</think><e>[TOOL_CALLS]clock[ARGS]{}[TOOL_CALLS]weather[ARGS]{"city": "Rome"}'
    answer = write(lm, text)
    assert [(one.name, one.arguments) for one in answer.tool_calls] == [
        ("clock", {}),
        ("weather", {"city": "Rome"}),
    ]
    assert (answer.reasoning_content, answer.content) == ("So", None)
    single = write(lm, text + "!", parallel_tool_calls=False)
    assert [one.name for one in single.tool_calls] == ["clock"]
    assert single.content is None
    # Tokens of other formats, and all of them without tools, are left out as before.
    assert write(lm, "<tool_call>a<e>").content == "a"
    assert write(lm, "[TOOL_CALLS]a", tool_choice="none").content == "a"
    for seed in range(4):
        answer = lm.chat([USER], tools=[WEATHER], tool_choice="required", seed=seed)
        if answer.finish_reason == "tool_calls":
            check_calls(answer.tool_calls)


def test_special_tokens_of_reasoning_are_part_of_the_grammar():
    lm = make("open-thinking", *SPECIAL[1:])
    end = lm.text_tokenizer.special_tokens["</think>"]
    for seed in range(4):
        options = {"seed": seed, "logit_bias": {end: 5.0}, "max_new_tokens": 100}
        answer = lm.chat([USER], regex="[0-9]{3}", **options)
        assert re.fullmatch("[0-9]{3}", answer.content)
        assert answer.reasoning_content
        answer = lm.chat([USER], tools=[WEATHER], tool_choice="required", **options)
        assert answer.reasoning_content
        check_calls(answer.tool_calls)


def test_constraints_apply_to_the_content():
    lm = make("thinking", "<think>", "</think>", "<tool_call>")
    special = lm.text_tokenizer.special_tokens
    end, begin, start = (special[name] for name in ("</think>", "<think>", "<tool_call>"))
    schema = {"type": "integer", "minimum": 100, "maximum": 200}
    grammar = 'start: "1" start | "2"'
    content = {
        "json_schema": (schema, r"1\d\d|200"),
        "regex": ("[ab]{4}", "[ab]{4}"),
        "grammar": (grammar, "1*2"),
        "choices": (["yes", "no"], "yes|no"),
    }
    for option, (value, pattern) in content.items():
        for bias in ({end: 4.0, begin: 50.0}, {begin: -100.0, start: -100.0}):
            answer = lm.chat([USER], seed=1, logit_bias=bias, **{option: value})
            assert re.fullmatch(pattern, answer.content), (option, answer)
            assert (answer.reasoning_content is not None) == (bias[begin] > 0)
            answer = lm.chat([USER], tools=[CLOCK], seed=1, logit_bias=bias, **{option: value})
            assert re.fullmatch(pattern, answer.content), (option, answer)
        bias = {begin: -100.0, start: 100.0}
        answer = lm.chat([USER], tools=[CLOCK], seed=1, logit_bias=bias, **{option: value})
        check_calls(answer.tool_calls)
    closed = {"enable_thinking": False}
    for _ in range(2):
        answer = lm.chat([USER], regex="[ab]", chat_template_kwargs=closed, logit_bias={begin: 50})
        assert answer.reasoning_content is None


def test_texts_without_tools_are_those_of_generate(models):
    lm = models["hermes"]
    prompt = "<u>How is it in Rome?<e>\n<a>"
    expected = lm.generate(prompt, max_new_tokens=30, seed=5).removeprefix(" ")
    answer = lm.chat([USER], max_new_tokens=30, seed=5)
    assert answer.content == expected
    assert answer.to_message() == {"role": "assistant", "content": expected}
    hidden = lm.chat([USER], tools=[CLOCK], tool_choice="none", max_new_tokens=30, seed=5)
    assert hidden.content == expected
    options = {"tools": [CLOCK], "tool_choice": "required", "seed": 2}
    drafted = lm.chat([USER], draft=PromptLookup(), **options)
    assert drafted.content == lm.chat([USER], **options).content


def test_malformed_calls_stay_content(models):
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": }}\n</tool_call>'
    answer = write(models["hermes"], text)
    assert (answer.content, answer.tool_calls, answer.finish_reason) == (text, (), "stop")
    assert json.dumps(answer.to_message())


def test_results_have_the_names_of_their_functions():
    named = TEMPLATES["hermes"].replace("'<t>' + m.content", "'<t>' + m.name + m.content")
    lm = make("hermes")
    lm = LanguageModel(lm.spec, lm.module, lm.tokenizer, Settings(chat_template=named))
    call = {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    history = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    history += [{"role": "tool", "tool_call_id": "a", "content": ": noon"}]
    assert "<t>clock: noon<e>" in lm.tokenizer.decode(ChatTurn(lm, history).prompt_ids)


WRONG = [
    ({"tool_choice": "any"}, "tool_choice is 'any', but must be 'auto', 'none', 'required' or"),
    ({"tool_choice": "required"}, "requires a call, but there are no tools"),
    ({"tool_choice": NAMED, "tools": [CLOCK]}, "'weather', but the tools are: clock"),
    ({"tools": [{"name": "f"}]}, r"tools\[0\] is not a function in OpenAI's format"),
    ({"tools": [CLOCK, CLOCK]}, "two tools have the name 'clock'"),
    ({"tools": [CLOCK], "tool_choice": "required", "regex": "a"}, "and regex constrains the text"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs cannot set tools"),
    ({"num_beams": 2}, "num_beams is not an option of sampling"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_refused(options, message, models):
    with pytest.raises(TriviumError, match=message):
        models["hermes"].chat([USER], **options)


def test_tools_that_cannot_be_used_are_refused(models):
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}
    with pytest.raises(TriviumError, match="the tools cannot be used: Invalid type: strin"):
        models["hermes"].chat([USER], tools=[bad], tool_choice="required")
    with pytest.raises(TokenizerError, match="in a format that cannot be read: a call of f"):
        models["pythonic"].chat([USER], tools=[CLOCK])
    lm = models["hermes"]
    plain = LanguageModel(lm.spec, lm.module, lm.tokenizer, Settings(chat_template="{{ 1 }}"))
    with pytest.raises(TokenizerError, match="does not render tools"):
        plain.chat([USER], tools=[CLOCK])


def follows(lm: LanguageModel, grammar: str, text: str) -> bool:
    """Whether a complete text follows a grammar, token by token."""
    tokenizer, stop_ids = lm.text_tokenizer, lm.generation_rules.stop_ids
    constraint = Constraint(tokenizer, stop_ids, grammar)
    for token_id in tokenizer.reading("special").encode(text, add_special_tokens=False).ids:
        allowed = constraint.allowed_tokens(tokenizer.vocab_size)
        assert allowed is not None
        if not allowed[token_id]:
            return False
        constraint.append(token_id)
    allowed = constraint.allowed_tokens(tokenizer.vocab_size)
    assert allowed is not None
    return constraint.is_complete or bool(allowed[[*stop_ids]].any())


@pytest.mark.parametrize("special", [(), SPECIAL[1:]], ids=["text", "special"])
@pytest.mark.parametrize("name", [name for name in READABLE if name != "open-thinking"])
def test_strict_calls_follow_their_schemas(name, special):
    lm = make(name, *special)
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    turn = ChatTurn(lm, [USER], tools=[strict, CLOCK])
    assert turn.prompt_ids == ChatTurn(lm, [USER], tools=[WEATHER, CLOCK]).prompt_ids
    grammar = turn.request(lm.sampling_params(turn.prompt_ids, {})).params.grammar
    assert ChatTurn(lm, [USER], tools=[CLOCK]).request(SamplingParams()).params.grammar is None
    assert grammar is not None

    def write(tool: str, arguments: str) -> str:
        form = turn._format
        assert form is not None
        start = form.opening + form.before_arguments(tool)
        if name == "qwen-xml":
            arguments = "".join(
                f"<parameter={key}>\n{value}\n</parameter>\n"
                for key, value in json.loads(arguments).items()
            )
        return start + arguments + form.after_arguments + form.closing

    good, free = write("weather", '{"city": "Rome", "days": 3}'), write("clock", '{"a": [1]}')
    for text in ("", "It is [sunny] in <Rome>.", good, free):
        assert follows(lm, grammar, text), text
    for arguments in ('{"city": "Oslo", "days": 3}', '{"city": "Rome"}'):
        assert not follows(lm, grammar, write("weather", arguments))
    assert not follows(lm, grammar, write("f", "{}"))
    assert not follows(lm, grammar, f"So {write('f', '{}')}") or name == "llama"
    if name != "llama":
        for text in (f"I see. {good}", f"{good}\n{free} Well."):
            assert follows(lm, grammar, text), text
    if name == "thinking":
        assert follows(lm, grammar, f"<think>So</think>\n\n{good}")


def test_required_arguments_in_xml():
    lm = make("qwen-xml")
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"$ref": "#/$defs/Count"},
            "kind": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/Count"}},
        },
        "required": ["text", "count"],
        "$defs": {"Count": {"type": "integer", "maximum": 9}},
    }

    def grammar_of(schema: dict[str, Any]) -> str:
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        turn = ChatTurn(lm, [USER], tools=[tool], tool_choice="required")
        grammar = turn.request(SamplingParams()).params.grammar
        assert grammar is not None
        return grammar

    def write(**values: str) -> str:
        parts = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        return f"<tool_call>\n<function=f>\n{parts}</function>\n</tool_call>"

    grammar = grammar_of(schema)
    for values in (
        {"text": "two\nlines", "count": "7"},
        {"text": "", "count": "7", "kind": "b", "parts": "[1, 2]"},
        {"text": "7", "count": "-1", "kind": "null"},
    ):
        assert follows(lm, grammar, write(**values)), values
    for values in (
        {"text": "x"},
        {"count": "7"},
        {"text": "x", "count": "12"},
        {"text": "x", "count": "7", "kind": "c"},
        {"text": "x", "count": "7", "parts": '["x"]'},
        {"text": "x", "count": "7", "other": "x"},
    ):
        assert not follows(lm, grammar, write(**values)), values
    assert follows(lm, grammar_of({"type": "object"}), write(other="x", count="7"))
    with pytest.raises(TriviumError, match="the schema of a tool has 'pattern', which cannot be"):
        grammar_of({"properties": {"x": {"type": "string", "pattern": "a"}}})
