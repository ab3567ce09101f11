"""Read prompts, responses and lists of messages from records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.data.records import Record, json_type
from trivium.data.schema import Fields, Usual
from trivium.errors import DataError, did_you_mean, shorten
from trivium.text.chat_template import TEMPLATE_VARIABLES, parse_arguments
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
TOOLS = Fields("tools?", ("tools",))
TEMPLATE_KWARGS = Fields("chat_template_kwargs?", ("chat_template_kwargs",))
ROLES = ("system", "user", "assistant", "tool")
# Other names of roles: OpenAI's "developer", and the roles of ShareGPT {"from": ..., "value": ...}.
_OTHER_ROLES = {
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
}
_ONLY_TOOL_CALLS = "data.tool_calls_alone"
_TOOL_FIELDS = ("tool_calls", "tool_call_id", "reasoning_content")
_SYSTEM_TWICE = "data.own_system_message"
_NO_SPACE = "data.no_space_after_prompt"

Message = dict[str, Any]
Turn = str | tuple[Message, ...]
"""A text, or messages {"role", "content"}.

A message may also have a "name" and a "weight". Messages of the task `chat` may have "tool_calls",
"tool_call_id" and "reasoning_content", too.
"""


def read_messages(record: Record, column: str, *, complete: bool = False) -> list[Message]:
    """Read the messages in a column, which contains a list of messages or a single message.

    Blank system messages are skipped, and so are messages that contain only tool calls, unless
    `complete` is set.

    Args:
        record: the record.
        column: the name of the column.
        complete: whether to keep tool calls, their ids, the reasoning, and "weight": 0. In OpenAI's
            format, messages with this weight are excluded from the loss.

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
        used = {role, content, "name", *(["weight", *_TOOL_FIELDS] if complete else [])}
        extra = [name for name, field in item.items() if name not in used and field]
        if record.report is not None:
            record.report.unused.update(extra)
        has_text = not (item.get(content) is None or str(item[content]).strip() == "")
        parts = _read_tool_fields(message, known_role) if complete else {}
        if not has_text and {"tool_calls", "function_call"} & {*extra}:
            record.count_in_report(_ONLY_TOOL_CALLS)
        elif has_text or known_role != "system":
            may_be_blank = "tool_calls" in parts or (complete and known_role == "tool")
            text = "" if not has_text and may_be_blank else message.text(content)
            messages.append({"role": known_role, "content": text, **parts})
            if isinstance(item.get("name"), str) and item["name"].strip():
                messages[-1]["name"] = item["name"]
            if complete and _read_weight(message) == 0:
                messages[-1]["weight"] = 0
    return messages


def _read_tool_fields(message: Record, role: str) -> Message:
    """Return the tool calls, the tool call id and the reasoning of a message, if it has them.

    If the arguments of tool calls are JSON strings, they are parsed to objects.

    Raises DataError if a field has the wrong type.
    """
    parts: Message = {}
    calls = message.get("tool_calls")
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            kind = json_type(calls) if role == "assistant" else f"in a message of the role {role}"
            raise DataError(
                f'"tool_calls" of {message.where} is {kind}, not a list of an assistant.'
            )
        for call in calls:
            inner = call.get("function") or call if isinstance(call, dict) else None
            if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
                raise DataError(
                    f'a tool call of {message.where} has no name: give {{"function": {{"name": '
                    '..., "arguments": {...}}}.'
                )
        parts.update(parse_arguments({"tool_calls": calls}))
    for name in ("tool_call_id", "reasoning_content"):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(f'"{name}" of {message.where} is {json_type(value)}, not a text.')
        if value:
            parts[name] = value
    return parts


def read_tools(record: Record) -> tuple[Mapping[str, Any], ...]:
    """Read the column `tools`: a list of functions in OpenAI's format, or a JSON string of one.

    Returns an empty tuple if there are no tools. Raises DataError for any other value.
    """
    value = _read_json_column(record, "tools")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        column = record.columns["tools"]
        raise DataError(f'"{column}" of {record.where} is not a list of functions.')
    return tuple(value)


def read_template_kwargs(record: Record) -> dict[str, Any]:
    """Read the column `chat_template_kwargs`: an object, or a JSON string of one.

    Returns {} if the column is missing or blank. Raises DataError for any other value.
    """
    value = _read_json_column(record, "chat_template_kwargs")
    if not isinstance(value, dict | None):
        column = record.columns["chat_template_kwargs"]
        raise DataError(f'"{column}" of {record.where} is not an object.')
    if reserved := [name for name in TEMPLATE_VARIABLES if name in (value or {})]:
        raise DataError(f"{record.where}: chat_template_kwargs cannot set {reserved[0]}.")
    return {name: each for name, each in (value or {}).items() if each is not None}


def _read_json_column(record: Record, field: str) -> Any:
    """Return the value of a field; a JSON string is parsed. Returns None if unset or blank."""
    if field not in record.columns:
        return None
    value: Any = record.value(record.columns[field])
    if isinstance(value, str):
        try:
            return json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f'"{record.columns[field]}" of {record.where} is not JSON: {error}.'
            ) from None
    return value


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


def read_turn(record: Record, field: str, *, complete: bool = False) -> Turn:
    """Read a field that contains a text, or a list of messages (see `read_messages`)."""
    column = record.columns[field]
    if isinstance(record.value(column), str):
        return record.text(column)
    return tuple(read_messages(record, column, complete=complete))


def read_prompt(record: Record, *, complete: bool = False) -> Turn | None:
    """Read the prompt of a record: a text with its `input` appended, or a list of messages.

    `complete` is the option of `read_messages`.

    Returns None if the record has no prompt.
    """
    if "prompt" not in record.columns:
        return None
    turn = read_turn(record, "prompt", complete=complete)
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
    """Return whether all `turns` are plain texts, not messages, and there is no `system` column."""
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
