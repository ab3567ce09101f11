"""Conversations, and prompts with their response, for tuning a model to answer."""

from __future__ import annotations

import dataclasses

from trivium.data.labelled.files import Paths, example_files
from trivium.data.labelled.records import (
    RECORD_SUFFIXES,
    FieldNames,
    Record,
    as_record,
    as_text,
    field_text,
    field_value,
    json_type,
    no_such_field,
    read_records,
    usual_field,
    usual_pair,
)
from trivium.errors import DataError, did_you_mean

MESSAGES = ("messages", "conversations", "conversation")
PROMPTS_AND_RESPONSES = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("input", "output"),
)
ROLES = ("system", "user", "assistant", "tool")
# As in the files of ShareGPT, whose messages are {"from": ..., "value": ...}.
_OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What one side says: `role` is one of `ROLES`."""

    role: str
    content: str


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in turn, at least one of them the assistant's."""

    messages: tuple[Message, ...]
    where: str

    @property
    def group(self) -> str:
        """What keeps examples on one side of a division: what is said before the assistant."""
        before = []
        for message in self.messages:
            if message.role == "assistant":
                break
            before.append(message.content)
        return "\n".join(before) or self.messages[0].content


def read_conversations(
    paths: Paths,
    *,
    messages_field: str | None = None,
    prompt_field: str | None = None,
    response_field: str | None = None,
) -> list[Conversation]:
    """The conversations of JSON lines, JSON lists and tables.

    A record has a list of messages (`role` and `content`, or `from` and `value`), or a prompt and
    a response by the names of `PROMPTS_AND_RESPONSES`: one message of the user and one of the
    assistant. `instruction` takes an `input` that is not blank after an empty line; `system` is
    the first message.

    Raises DataError with file and line at a missing or blank part, an unknown role, and where the
    assistant says nothing.
    """
    if (prompt_field is None) != (response_field is None):
        raise DataError("prompt_field and response_field are given together.")

    def find(record: Record) -> tuple[str, ...]:
        if prompt_field is not None and response_field is not None:
            return prompt_field, response_field
        messages = messages_field or usual_field(record, MESSAGES)
        pair = usual_pair(record, PROMPTS_AND_RESPONSES)
        if messages is not None:
            return (messages,)
        if pair is None:
            known = ["messages", *(f"{a} with {b}" for a, b in PROMPTS_AND_RESPONSES)]
            options = ("messages_field", "prompt_field", "response_field")
            raise no_such_field(record, "messages", known, options)
        return pair

    names = FieldNames(find)
    return [
        _of_record(record, names.of(record))
        for file in example_files(paths, RECORD_SUFFIXES)
        for record in read_records(file)
    ]


def _of_record(record: Record, names: tuple[str, ...]) -> Conversation:
    if len(names) == 2:
        said = _prompt_and_response(record, *names)
    else:
        said = _messages(record, names[0])
    system = record.fields.get("system")
    if isinstance(system, str) and system.strip() and said[0].role != "system":
        said.insert(0, Message("system", system))
    return Conversation(tuple(said), record.where)


def _prompt_and_response(record: Record, prompt: str, response: str) -> list[Message]:
    asked = field_text(record, prompt, "prompt_field")
    more = record.fields.get("input") if prompt.lower() == "instruction" else None
    if isinstance(more, str) and more.strip():
        asked = f"{asked}\n\n{more}"
    return [
        Message("user", asked),
        Message("assistant", field_text(record, response, "response_field")),
    ]


def _messages(record: Record, name: str) -> list[Message]:
    value = field_value(record, name, "messages_field")
    if not isinstance(value, list) or not value:
        raise DataError(
            f'The field "{name}" of {record.where} is '
            f"{'empty' if value == [] else json_type(value)}, not a list of messages."
        )
    said = []
    for number, one in enumerate(value, start=1):
        message = as_record(one, f"{record.where}, message {number}")
        role, content = ("from", "value") if "from" in message.fields else ("role", "content")
        said.append(Message(_role(message, role), field_text(message, content)))
    if not any(message.role == "assistant" for message in said):
        raise DataError(f"{record.where} has no message of the assistant: nothing to learn.")
    return said


def _role(message: Record, name: str) -> str:
    given = as_text(field_value(message, name), f"The {name} of {message.where}")
    role = _OTHER_ROLES.get(given, given)
    if role not in ROLES:
        raise DataError(
            f'The {name} of {message.where} is "{given}"; known are {", ".join(ROLES)}.'
            f"{did_you_mean(given, ROLES)}"
        )
    return role
