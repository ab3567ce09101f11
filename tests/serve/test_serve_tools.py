"""Tools, reasoning and structured output over HTTP, with the official client."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from serving import TEXT, running, transformer
from tool_templates import CLOCK, TEMPLATES, WEATHER

from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.spec import LMHead
from trivium.text import Tokenizer

SPECIAL = ["<|endoftext|>", "[TOOL_CALLS]", "[ARGS]"]
USER: dict[str, Any] = {"role": "user", "content": "How is it in Rome?"}
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = {"weather": WEATHER, "clock": CLOCK}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=TEXT * 5, vocab_size=303, special_tokens=SPECIAL, progress=False
    )
    lm, folder = transformer(303, "decoder", (LMHead(tied=True),), 2027), tmp_path_factory
    models = {
        name: LanguageModel(lm.spec, lm.module, tokenizer, Settings(chat_template=template))
        for name, template in TEMPLATES.items()
    }
    return {name: str(lm.save(folder.mktemp(name) / name)) for name, lm in models.items()}


@pytest.fixture(scope="module")
def client(models):
    with (
        running(models) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: openai.OpenAI, model: str, **options: Any) -> Any:
    """The choice of a complete answer, which must equal that of a streamed one."""
    body = {"model": model, "messages": [USER], "max_tokens": 400, "seed": 5, **options}
    answer = client.chat.completions.create(**body)
    (choice,) = answer.choices
    reasoning, snapshot = [], None
    with client.chat.completions.stream(**body) as stream:
        for event in stream:
            if event.type == "chunk":
                delta, snapshot = event.chunk.choices[0].delta, event.snapshot
                reasoning.append(getattr(delta, "reasoning_content", None) or "")
    assert snapshot is not None
    (streamed,) = snapshot.choices
    assert (streamed.message.content or None) == (choice.message.content or None)
    assert "".join(reasoning) == (getattr(choice.message, "reasoning_content", None) or "")
    assert streamed.finish_reason == choice.finish_reason
    calls, again = choice.message.tool_calls or [], streamed.message.tool_calls or []
    assert [(one.function.name, one.function.arguments, one.type) for one in again] == [
        (one.function.name, one.function.arguments, one.type) for one in calls
    ]
    return choice


def script(text: str, start: str, tokenizer: Tokenizer, **options: Any) -> dict[str, Any]:
    """Options with which a random model writes `text`, which begins with the token `start`."""
    bias = {str(tokenizer.token_to_id(start)): 100}
    return {"logit_bias": bias, "extra_body": {"structured_outputs": {"choice": [text]}}, **options}


@pytest.mark.parametrize(
    "name", ["hermes", "thinking", "llama", "mistral", "mistral-args", "qwen-xml"]
)
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_required_calls(name, choice, client):
    variables = {"chat_template_kwargs": {"enable_thinking": False}}
    options = {"tools": [WEATHER, CLOCK], "tool_choice": choice, "extra_body": variables}
    options["logit_bias"] = {"0": 5}  # the end of the text
    answer = ask(client, name, parallel_tool_calls=choice == "required", **options)
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    assert answer.message.tool_calls
    for one in answer.message.tool_calls:
        schema = TOOLS[one.function.name]["function"]["parameters"]
        jsonschema.validate(json.loads(one.function.arguments), schema)
        assert re.fullmatch("[a-zA-Z0-9]{9}", one.id)
    if choice == NAMED:
        assert [one.function.name for one in answer.message.tool_calls] == ["weather"]


def test_an_answer_and_its_results_come_back(client):
    options = {"tools": [WEATHER, CLOCK], "max_tokens": 300, "seed": 3, "model": "hermes"}
    create, bias = client.chat.completions.create, {"0": 5}
    (choice,) = create(messages=[USER], tool_choice="required", logit_bias=bias, **options).choices
    assert choice.finish_reason == "tool_calls"
    first = choice.message
    assert first.tool_calls
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "noon"}]}
        for call in first.tool_calls
    ]
    written = "\n".join(
        f'<tool_call>\n{{"name": "{call.function.name}", "arguments": '
        f"{call.function.arguments}}}\n</tool_call>"
        for call in first.tool_calls
    )
    prompt = f"<u>How is it in Rome?<e>\n<a>{written}<e>\n" + "<t>noon<e>\n" * len(results) + "<a>"
    tools = "<s>tools\n" + "".join(json.dumps(tool) + "\n" for tool in (WEATHER, CLOCK))
    expected = client.completions.create(
        model="hermes", prompt=tools + prompt, max_tokens=5, temperature=0
    )
    for message in (
        first,
        first.model_dump(),
        {"role": "assistant", "tool_calls": first.tool_calls},
    ):
        history = [USER, message, *results]
        second = create(**{**options, "messages": history, "temperature": 0, "max_tokens": 5})
        assert second.usage.prompt_tokens == expected.usage.prompt_tokens
        assert second.choices[0].message.content == expected.choices[0].text.removeprefix(" ")


CALLS = '{"name": "clock", "arguments": {}}'
TEXTS = [
    ("hermes", "I", f"I see.\n<tool_call>\n{CALLS}\n</tool_call>", "I see.", 1),
    ("hermes", "I", f"I see.\n<tool_call>{CALLS}</tool_call>" * 2, "I see.I see.", 2),
    ("hermes", "I", "I <tool_call>{clock}</tool_call>", "I <tool_call>{clock}</tool_call>", 0),
    ("llama", "I", f"I see {CALLS}", f"I see {CALLS}", 0),
    ("mistral-args", "I", "I [TOOL_CALLS] see", "I [TOOL_CALLS] see", 0),
]


@pytest.mark.parametrize(("name", "start", "text", "content", "count"), TEXTS)
def test_calls_that_the_model_chooses(name, start, text, content, count, client, models):
    tokenizer = Tokenizer.load(models[name])
    answer = ask(client, name, tools=[CLOCK], **script(text, start, tokenizer))
    assert answer.message.content == content
    assert [one.function.name for one in answer.message.tool_calls or []] == ["clock"] * count
    assert answer.finish_reason == ("tool_calls" if count else "stop")
    single = ask(
        client, name, tools=[CLOCK], parallel_tool_calls=False, **script(text, start, tokenizer)
    )
    assert len(single.message.tool_calls or []) == min(count, 1)
    plain = ask(client, name, tool_choice="none", tools=[CLOCK], **script(text, start, tokenizer))
    assert plain.message.content == text
    assert plain.message.tool_calls is None


def test_reasoning_is_separate(client, models):
    tokenizer = Tokenizer.load(models["thinking"])
    text = "<think>\nWell?\n</think>\n\nYes."
    scripted = script(text, "<", tokenizer)
    scripted["extra_body"] = {"structured_outputs": {"grammar": f"start: {json.dumps(text)}"}}
    # This template has no reasoning, so that the grammar applies to the whole text.
    answer = ask(client, "hermes", **scripted)
    assert answer.message.reasoning_content == "Well?"
    assert answer.message.content == "Yes."
    options = {"logit_bias": {str(tokenizer.token_to_id("<")): 9}, "max_tokens": 900, "seed": 2}
    answer = ask(client, "open-thinking", **options)
    assert answer.message.reasoning_content
    history = [USER, answer.message, USER]
    assert client.chat.completions.create(model="thinking", messages=history, max_tokens=2).choices


def test_two_answers_have_readers_of_their_own(client):
    options = {"model": "mistral", "messages": [USER], "tools": [CLOCK], "n": 3, "seed": 4}
    whole = client.chat.completions.create(tool_choice="required", **options)
    names: list[list[str]] = [[], [], []]
    for chunk in client.chat.completions.create(tool_choice="required", stream=True, **options):
        for choice in chunk.choices:
            names[choice.index] += [one.function.name for one in choice.delta.tool_calls or ()]
    assert names == [
        [one.function.name for one in choice.message.tool_calls] for choice in whole.choices
    ]


@pytest.mark.parametrize("name", ["hermes", "open-thinking"])
def test_formats_of_the_content(name, client):
    options = {"max_tokens": 900, "seed": 2, "temperature": 1.5}
    formats = {
        "json_object": ({"type": "json_object"}, {"type": "object"}),
        "json_schema": (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
            SCHEMA,
        ),
    }
    if name == "open-thinking":  # a random model reasons too long otherwise
        options |= {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    for format, schema in formats.values():
        answer = ask(client, name, response_format=format, **options)
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.message.content), schema)
        prompt = {"model": "hermes", "prompt": "a", "max_tokens": 900, "seed": 2}
        completion = client.completions.create(extra_body={"response_format": format}, **prompt)
        if completion.choices[0].finish_reason == "stop":
            jsonschema.validate(json.loads(completion.choices[0].text), schema)
    free = ask(client, name, response_format={"type": "text"}, max_tokens=3).message
    assert (free.content is None) == (name == "open-thinking")  # which still reasons


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_structured_outputs(path, client):
    cases = {
        "regex": ("[ab]{4}", "[ab]{4}"),
        "choice": (["yes", "no"], "yes|no"),
        "grammar": ('start: "1" start | "2"', "1*2"),
        "json": (SCHEMA, r'\{"n": \d\d?\}'),
    }
    for field, (value, pattern) in cases.items():
        extra = {"structured_outputs": {field: value}}
        options: Any = {"model": "hermes", "max_tokens": 200, "seed": 1, "extra_body": extra}
        if path == "chat":
            text = client.chat.completions.create(messages=[USER], **options)
            text = text.choices[0].message.content
        else:
            text = client.completions.create(prompt="a", **options).choices[0].text
        assert re.fullmatch(pattern, text), (field, text)


def test_the_client_parses_models(client):
    class Answer(pydantic.BaseModel):
        kind: Literal["good", "bad"]
        flags: list[bool] = pydantic.Field(max_length=2)

    class Clock(pydantic.BaseModel):
        zone: Literal["utc", "cet"]

    options: Any = {"model": "hermes", "messages": [USER], "seed": 1, "max_tokens": 300}
    answer = client.chat.completions.parse(response_format=Answer, **options)
    assert isinstance(answer.choices[0].message.parsed, Answer)
    tool = openai.pydantic_function_tool(Clock)
    answer = client.chat.completions.parse(tools=[tool], tool_choice="required", **options)
    message = answer.choices[0].message
    assert message.tool_calls
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Clock)
    results = [
        {"role": "tool", "tool_call_id": one.id, "content": "noon"} for one in message.tool_calls
    ]
    options["messages"] = [USER, message, *results]
    assert client.chat.completions.create(**options).choices


def test_logprobs_of_calls_cover_all_tokens(client):
    options = {"model": "hermes", "messages": [USER], "tools": [CLOCK], "seed": 4, "logprobs": True}
    whole = client.chat.completions.create(tool_choice="required", **options)
    expected = [one.token for one in whole.choices[0].logprobs.content]
    assert "".join(expected).strip().startswith("<tool_call>")
    chunks = client.chat.completions.create(tool_choice="required", stream=True, **options)
    tokens = [one.token for chunk in chunks for one in (chunk.choices[0].logprobs.content or ())]
    assert tokens == expected


FUNCTION = {"name": "f", "parameters": {"type": "strin"}}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("tools", {"tools": [CLOCK, CLOCK]}, "two tools have the name 'clock'"),
    ("tool_choice", {"tools": [CLOCK], "tool_choice": NAMED}, "the tools are: clock"),
    ("tool_choice", {"tool_choice": "required"}, "there are no tools"),
    ("tool_choice", {"tool_choice": "any"}, 'tool_choice is .*"any.*, but must be .*"required'),
    ("tool_choice", {"tool_choice": {"type": "x"}}, "tool_choice.type is .*function"),
    (
        "chat_template_kwargs",
        {"extra_body": {"chat_template_kwargs": {"bos_token": "x"}}},
        "chat_template_kwargs cannot set bos_token",
    ),
    (
        "tools",
        {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
        "the tools cannot be used: Invalid type: strin",
    ),
    (
        "tool_choice",
        {"tools": [CLOCK], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "tool_choice requires a call, and json_schema constrains the text",
    ),
    ("response_format", {"response_format": {"type": "json_schema"}}, "if and only if"),
    (
        "response_format",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "strin"}},
            }
        },
        "json_schema cannot be used: Invalid type: strin",
    ),
    (
        "structured_outputs",
        {"extra_body": {"structured_outputs": {"regex": "a(", "choice": ["b"]}}},
        "only one of json, regex, choice and grammar",
    ),
    (
        "structured_outputs",
        {"extra_body": {"structured_outputs": {"regex": "a("}}},
        "regex cannot be used",
    ),
    (
        "structured_outputs",
        {"extra_body": {"structured_outputs": {"structural_tag": {}}}},
        "there is no field structured_outputs.structural_tag",
    ),
    ("guided_regex", {"extra_body": {"guided_regex": "a"}}, "there is no field guided_regex"),
]


@pytest.mark.parametrize(("field", "options", "message"), WRONG)
def test_wrong_requests_name_the_field(field, options, message, client):
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.chat.completions.create(model="hermes", messages=[USER], **options)
    assert error.value.param == field


def test_a_format_that_cannot_be_read_is_refused(client):
    message = r"in a format that cannot be read: a call of f with x = y is written as '\[f"
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.chat.completions.create(model="pythonic", messages=[USER], tools=[CLOCK])
    assert error.value.param == "tools"
    options: Any = {"model": "pythonic", "messages": [USER], "tools": [CLOCK], "max_tokens": 2}
    assert client.chat.completions.create(tool_choice="none", **options).choices
