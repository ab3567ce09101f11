"""Read prompts, responses and lists of messages from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium.data.records import Record, json_type
from trivium.data.schema import Fields, Usual
from trivium.errors import DataError, did_you_mean, shorten
from trivium.text.symbols import is_unspaced

MESSAGES = Fields("messages", ("messages",), ("conversations", "conversation"))
SYSTEM = Fields("system?", ("system",), ("system_prompt",))
# In Alpaca `input` is part of the prompt. In Dolly this column is called `context`.
PROMPTS: Sequence[Sequence[Usual]] = (
    ("prompt",),
    (
        *("instruction", ("instruction", "input"), ("instruction", "context")),
        *("question", "query", "input.messages"),
    ),
    ("input",),
)
ROLES = ("system", "user", "assistant", "tool")
# Other names of roles: OpenAI's "developer", and the roles of ShareGPT {"from": ..., "value": ...}.
_OTHER_ROLES = {
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
}
_ONLY_TOOL_CALLS = "data.tool_calls_alone"
_SYSTEM_TWICE = "data.own_system_message"
_NO_SPACE = "data.no_space_after_prompt"

Message = dict[str, Any]
Turn = str | tuple[Message, ...]
"""A text, or messages {"role", "content"}. A message may also have a "name" and a "weight"."""


def read_messages(record: Record, column: str, *, weighted: bool = False) -> list[Message]:
    """Read the messages in a column, which contains a list of messages or a single message.

    Blank system messages and messages that contain only tool calls are skipped.

    Args:
        record: the record.
        column: the name of the column.
        weighted: whether to keep "weight": 0 in messages. In OpenAI's format, messages with this
            weight are excluded from the loss.

    Raises:
        DataError: the column contains no messages, a message other than a system message is blank,
            or a role is unknown.
    """
    value: Any = record.value(column)
    if isinstance(value, dict) and {"role", "from"} & value.keys():
        value = [value]
    if not isinstance(value, list) or not value:
        kind = "empty" if value == [] else json_type(value)
        raise DataError(f'"{column}" of {record.where} is {kind}, not a list of messages.')
    messages: list[Message] = []
    for number, item in enumerate(value, start=1):
        where = f"{record.where}, message {number}"
        if not isinstance(item, dict):
            raise DataError(f"{where} is {json_type(item)}, not an object with role and content.")
        message = Record(item, where)
        role, content = ("from", "value") if "from" in message else ("role", "content")
        known_role = _read_role(message, role)
        used = {role, content, "name", *(["weight"] if weighted else [])}
        extra = [name for name, field in item.items() if name not in used and field]
        if record.report is not None:
            record.report.unused.update(extra)
        has_text = not (item.get(content) is None or str(item[content]).strip() == "")
        if not has_text and {"tool_calls", "function_call"} & {*extra}:
            record.count_in_report(_ONLY_TOOL_CALLS)
        elif has_text or known_role != "system":
            messages.append({"role": known_role, "content": message.text(content)})
            if isinstance(item.get("name"), str) and item["name"].strip():
                messages[-1]["name"] = item["name"]
            if weighted and _read_weight(message) == 0:
                messages[-1]["weight"] = 0
    return messages


def _read_role(message: Record, column: str) -> str:
    """Return the role of a message, such as "user". `column` is "role" or "from".

    Raises DataError if the role is unknown.
    """
    name = message.text(column)
    known = _OTHER_ROLES.get(name, name)
    if known not in ROLES:
        raise DataError(
            f'the role of {message.where} is "{shorten(known)}"; known are {", ".join(ROLES)}.'
            f"{did_you_mean(known, ROLES)}"
        )
    return known


def _read_weight(message: Record) -> float:
    """Return the loss weight of a message, which is 1 if the message has no "weight".

    Raises DataError if the weight is not 0 or 1.
    """
    weight = message.get("weight")
    if weight is not None and weight not in (0, 1):
        raise DataError(f'"weight" of {message.where} is {weight!r}: give 0 or 1.')
    return 1 if weight is None else weight


def read_turn(record: Record, field: str, *, weighted: bool = False) -> Turn:
    """Read a field of a record: a text, or a list of messages (see `read_messages`)."""
    column = record.columns[field]
    if isinstance(record.value(column), str):
        return record.text(column)
    return tuple(read_messages(record, column, weighted=weighted))


def read_prompt(record: Record) -> Turn | None:
    """Read the prompt of a record: a text with its `input` appended, or a list of messages.

    Returns None if the record has no prompt.
    """
    if "prompt" not in record.columns:
        return None
    turn = read_turn(record, "prompt")
    return append_input(record, turn) if isinstance(turn, str) else turn


def append_input(record: Record, text: str) -> str:
    """Append the `input` column of a record to its instruction, as in Alpaca.

    Returns the instruction unchanged if `input` is missing or blank.
    """
    more = record.optional_text("input")
    return text if more is None else f"{text}\n\n{more}"


def join_messages(record: Record, prompt: Turn | None, response: Turn = ()) -> tuple[Message, ...]:
    """Join the system message of a record, a prompt and a response into one tuple of messages.

    If the prompt already starts with a system message, the `system` column is not used.
    """
    messages = prepend_prompt(prompt, response)
    system = record.optional_text("system")
    if system is None or not messages:
        return messages
    if messages[0]["role"] == "system":
        record.count_in_report(_SYSTEM_TWICE)
        return messages
    return ({"role": "system", "content": system}, *messages)


def prepend_prompt(prompt: Turn | None, response: Turn) -> tuple[Message, ...]:
    """Join a prompt and its response into one tuple of messages.

    If the response consists of messages and the first one is not by the assistant, the response is
    already a whole conversation. It is then returned without the prompt.
    """
    if isinstance(response, str):
        response = ({"role": "assistant", "content": response},)
    if isinstance(prompt, str):
        prompt = ({"role": "user", "content": prompt},)
    if response and response[0]["role"] != "assistant":
        return response
    return (*(prompt or ()), *response)


def are_texts(record: Record, *turns: Turn | None) -> bool:
    """Return whether the record has no `system` column and none of the `turns` are messages."""
    return "system" not in record.columns and not any(isinstance(turn, tuple) for turn in turns)


def as_text(turn: Turn) -> str:
    """Return a turn as plain text. The contents of messages are joined with line breaks."""
    return turn if isinstance(turn, str) else "\n".join(message["content"] for message in turn)


def note_missing_space(record: Record, prompt: str, responses: Sequence[str]) -> None:
    """Add a note to the read report if a space seems to be missing before a response.

    A prompt and its response are concatenated without a space, as in trl. Code and Chinese text
    need no space, but most other text does.
    """
    for text in responses:
        ends = prompt[-1:].isalnum() or prompt[-1:] in {*".,:;?!"}
        lacks = ends and text[0].isalnum() and not any(map(is_unspaced, (prompt[-1], text[0])))
        if lacks and not text.startswith(prompt):
            record.count_in_report(_NO_SPACE)
