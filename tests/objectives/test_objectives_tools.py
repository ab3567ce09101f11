"""Fine-tuning on conversations with tools, tool calls and reasoning."""

from __future__ import annotations

import json
import warnings

import pytest
import transformers
from tool_templates import CLOCK, TEMPLATES, WEATHER, call

from trivium.data.batch import IGNORE_INDEX
from trivium.errors import DataError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.objectives.chat import Chat
from trivium.presets import presets
from trivium.spec import Learned
from trivium.text import Tokenizer
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate

USER = {"role": "user", "content": "weather?"}
RESULT = {"role": "tool", "content": "sunny", "tool_call_id": "call00001"}
PARIS = call("weather", {"city": "Paris", "days": 2})
ROUND = [
    {"role": "system", "content": "be brief"},
    USER,
    {"role": "assistant", "content": None, "tool_calls": [PARIS]},
    RESULT,
    {"role": "assistant", "content": "It is sunny.", "reasoning_content": "all done"},
]
TWICE = [*ROUND, {"role": "user", "content": "thanks"}, {"role": "assistant", "content": "Bye"}]
SOURCES = {**TEMPLATES, "plain": PLAIN_TEMPLATE}


def byte_model(source: str) -> LanguageModel:
    """A tiny decoder with a chat template, whose tokens are bytes."""
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=["a"], vocab_size=257, special_tokens=["</s>"], progress=False
    )
    spec = presets["gpt2-tiny"].replace(vocab_size=tokenizer.vocab_size)
    spec = spec.replace(embedding=spec.embedding.replace(positions=Learned(max_length=2048)))
    settings = Settings(chat_template=source)
    return LanguageModel(spec, build(spec, seed=0), tokenizer, settings)


def rows_of(encoded):
    return [encoded.take([number]).to_batch() for number in range(len(encoded))]


def read(folder, *records):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return list(Chat().read([str(path)]))


def as_texts(messages):
    """The messages as OpenAI's API has them: arguments are JSON texts."""
    calls = [{**PARIS, "function": {"name": "weather", "arguments": '{"city":"Paris","days":2}'}}]
    return [{**one, "tool_calls": calls} if "tool_calls" in one else one for one in messages]


@pytest.mark.parametrize("name", SOURCES)
def test_targets_include_the_tool_calls(tmp_path, name):
    row = {"tools": [WEATHER, CLOCK]}
    rows = [{**row, "messages": ROUND}, {**row, "messages": as_texts(TWICE)}]
    rows.append({"tools": json.dumps([WEATHER]), "messages": ROUND})
    examples = read(tmp_path, *rows)
    assert [one.tools for one in examples] == [(WEATHER, CLOCK)] * 2 + [(WEATHER,)]
    objective, lm = Chat(), byte_model(SOURCES[name])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the chat template does not show")
        encoded = objective.encode(examples, lm)
    template = ChatTemplate.of(SOURCES[name], lm.text_tokenizer)
    for number, example in enumerate(examples):
        text, spans = template.get_turns(example.messages, tools=example.tools)
        first, *_, last = [text[start:stop] for start, stop in spans]
        assert "weather" in first
        assert name == "pythonic" or "Paris" in first
        assert "<u>" not in first + last
        assert "sunny" not in first
        assert len(spans) == sum(one["role"] == "assistant" for one in example.messages)
        labels = encoded.take([number]).to_batch().labels[0]
        ids = [i for i in labels if i != IGNORE_INDEX]
        decoded = lm.tokenizer.decode(ids, skip_special_tokens=False)
        assert decoded == "".join(text[start:stop] for start, stop in spans)


@pytest.mark.parametrize("name", SOURCES)
def test_the_text_with_tools_is_that_of_transformers(name):
    backend = transformers.PreTrainedTokenizerFast(tokenizer_object=words(), eos_token="</s>")
    for messages in (ROUND, TWICE, [USER]):
        messages = [{**one, "content": one["content"] or ""} for one in messages]
        for tools in (None, [WEATHER, CLOCK]):
            for variables in ({}, {"enable_thinking": False}):
                for prompt in (False, True):
                    expected = backend.apply_chat_template(
                        messages,
                        chat_template=SOURCES[name],
                        tools=tools,
                        tokenize=False,
                        add_generation_prompt=prompt,
                        **variables,
                    )
                    text = ChatTemplate(SOURCES[name], {"eos_token": "</s>"}).render(
                        messages, tools=tools, add_generation_prompt=prompt, **variables
                    )
                    assert text == expected


def words():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>"))


def test_variables_of_the_template_are_a_column(tmp_path):
    row = {"messages": [USER, {"role": "assistant", "content": "ok"}]}
    variables = {"enable_thinking": False, "style": None}
    plain, chosen = read(tmp_path, row, {**row, "chat_template_kwargs": variables})
    assert (plain.variables, chosen.variables) == ({}, {"enable_thinking": False})
    source = "{{ 'x' if enable_thinking is defined else 'y' }}" + TEMPLATES["hermes"]
    objective, lm = Chat(), byte_model(source)
    rows = rows_of(objective.encode([plain, chosen], lm))
    assert [lm.tokenizer.decode(row.input_ids[0])[0] for row in rows] == ["y", "x"]
    with pytest.raises(DataError, match="chat_template_kwargs cannot set tools"):
        read(tmp_path, {**row, "chat_template_kwargs": {"tools": []}})


def test_parts_that_the_template_does_not_show_are_warned_of(tmp_path):
    examples = read(tmp_path, {"tools": [CLOCK], "messages": ROUND})
    turn = "{{ m.content }}{% generation %}x{% endgeneration %}"
    objective, lm = Chat(), byte_model(f"{{% for m in messages %}}{turn}{{% endfor %}}")
    with pytest.warns(UserWarning, match=r"\w") as caught:
        objective.encode(examples, lm)
    assert [str(one.message).partition(",")[0] for one in caught] == [
        "1 conversations have tools",
        "1 conversations have messages with tool_calls",
        "1 conversations have messages with reasoning_content",
    ]


def test_a_separate_template_for_tools(tmp_path):
    examples = read(tmp_path, {"tools": [CLOCK], "messages": ROUND}, {"messages": TWICE[-2:]})
    named = {"default": "{% for m in messages %}<d>{{ m.content }}{% endfor %}<d>"}
    named["tool_use"] = TEMPLATES["hermes"]
    templates = [{"name": name, "template": text} for name, text in named.items()]
    examples[0].messages[-1].pop("reasoning_content")
    settings = Settings(tokenizer={"chat_template": templates}, chat_template=named["default"])
    objective, lm = Chat(), byte_model("")
    lm.settings = settings
    rows = [
        lm.tokenizer.decode(row.input_ids[0]) for row in rows_of(objective.encode(examples, lm))
    ]
    assert ["tool_call" in row for row in rows] == [True, False]
    (tmp_path / "lm").mkdir()
    settings.write(tmp_path / "lm")
    assert Settings.read(tmp_path / "lm").tool_template == named["tool_use"]
    folder = tmp_path / "hf" / "additional_chat_templates"
    folder.mkdir(parents=True)
    (folder / "tool_use.jinja").write_text(named["tool_use"])
    (folder.parent / "chat_template.jinja").write_text(named["default"])
    read_settings = Settings.read(folder.parent)
    assert read_settings.tool_template == named["tool_use"]
    assert read_settings.chat_template == named["default"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "a tool call .* has no name"),
        ({"role": "assistant", "tool_calls": {"name": "f"}}, '"tool_calls" .* not a list'),
        ({"role": "user", "content": "a", "tool_calls": [PARIS]}, "of the role user, not a list"),
        ({"role": "tool", "content": "a", "tool_call_id": 5}, '"tool_call_id" .* not a text'),
        ({"role": "user", "content": ""}, "message 1"),
    ],
)
def test_wrong_messages_are_refused(tmp_path, message, error):
    answer = {"role": "assistant", "content": "b"}
    with pytest.raises(DataError, match=error):
        read(tmp_path, {"messages": [message, answer]})
    for column, value in (("tools", {"a": 1}), ("tools", "[1"), ("chat_template_kwargs", [1])):
        with pytest.raises(DataError, match=f'"{column}"'):
            read(tmp_path, {"messages": [USER, answer], column: value})
