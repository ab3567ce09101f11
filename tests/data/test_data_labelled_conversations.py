from __future__ import annotations

import json

import pytest

from trivium.data.labelled import Conversation, Message, read_conversations
from trivium.errors import DataError

USER, ASSISTANT = Message("user", "Hi"), Message("assistant", "Hello")


def write(path, *records):
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def message(role, content):
    return {"role": role, "content": content}


def test_messages(tmp_path):
    said = [message("system", "Be kind"), message("user", "Hi"), message("assistant", "Hello")]
    other = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    path = write(tmp_path / "a.jsonl", {"messages": said}, {"conversations": other})
    system = Message("system", "Be kind")
    assert read_conversations([path]) == [
        Conversation((system, USER, ASSISTANT), f"{path}, line 1"),
        Conversation((USER, ASSISTANT), f"{path}, line 2"),
    ]
    path = write(tmp_path / "a.jsonl", {"chat": other, "system": "Be kind", "messages": []})
    found = read_conversations(path, messages_field="chat")
    assert found[0].messages == (system, USER, ASSISTANT)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Hi", "response": "Hello"},
        {"prompt": "Hi", "completion": "Hello"},
        {"question": "Hi", "answer": "Hello"},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"input": "Hi", "output": "Hello"},
    ],
)
def test_prompts_with_a_response(tmp_path, record):
    path = write(tmp_path / "a.jsonl", record)
    assert read_conversations(path)[0].messages == (USER, ASSISTANT)


def test_instructions_take_an_input(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"instruction": "Add", "input": "2 3", "output": "5"}]))
    assert read_conversations(path)[0].messages[0].content == "Add\n\n2 3"


def test_named_fields(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("prompt,response,in,out\nno,no,Hi,Hello\n")
    found = read_conversations(path, prompt_field="in", response_field="out")
    assert found[0].messages == (USER, ASSISTANT)
    with pytest.raises(DataError, match="given together"):
        read_conversations(path, prompt_field="in")
    with pytest.raises(DataError, match=r'no field "answer"; it has prompt, .*response_field'):
        read_conversations(path, prompt_field="in", response_field="answer")


@pytest.mark.parametrize(
    ("record", "mistake"),
    [
        ({"messages": [message("user", "Hi")]}, r"line 1 has no message of the assistant"),
        ({"messages": []}, r'"messages" of .*line 1 is empty'),
        ({"messages": "Hi"}, r'"messages" of .*line 1 is a text, not a list'),
        ({"messages": ["Hi"]}, r"line 1, message 1 is a text, not an object"),
        ({"messages": [message("asistant", "Hi")]}, r'"asistant"; known.*Did you mean "assistant"'),
        ({"messages": [message("user", " ")]}, r'"content" of .*message 1 is blank'),
        (
            {"messages": [{"role": "user"}]},
            r'line 1, message 1 has no field "content"; it has',
        ),
        ({"prompt": "Hi", "response": ""}, r'"response" of .*line 1 is blank'),
        ({"prompt": "Hi", "reply": "Hello"}, r"has no messages: its fields are prompt, reply"),
    ],
)
def test_broken_conversations_are_one_message(tmp_path, record, mistake):
    path = write(tmp_path / "a.jsonl", record)
    with pytest.raises(DataError, match=mistake):
        read_conversations(path)


def test_the_group_is_what_is_asked(tmp_path):
    path = write(tmp_path / "a.jsonl", {"prompt": "Hi", "response": "x", "system": "s"})
    assert read_conversations(path)[0].group == "s\nHi"
    only = Conversation((ASSISTANT,), "here")
    assert only.group == "Hello"
