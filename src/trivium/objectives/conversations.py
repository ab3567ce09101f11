"""Prompts, responses and messages: how all tasks on them read their records alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium.data.records import Record, json_type
from trivium.data.schema import Fields, Usual
from trivium.errors import DataError, did_you_mean, shorten
from trivium.text.symbols import is_unspaced

MESSAGES = Fields("messages", ("messages",), ("conversations", "conversation"))
SYSTEM = Fields("system?", ("system",), ("system_prompt",))
# In Alpaca's records `input` is part of the prompt; in Dolly's it is called `context`.
PROMPTS: Sequence[Sequence[Usual]] = (
    ("prompt",),
    (
        *("instruction", ("instruction", "input"), ("instruction", "context")),
        *("question", "query", "input.messages"),
    ),
    ("input",),
)
ROLES = ("system", "user", "assistant", "tool")
# OpenAI's "developer", and what ShareGPT's messages {"from": ..., "value": ...} call the roles.
_OTHER_ROLES = {
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
}
_CALLS_ALONE = "data.tool_calls_alone"
_OWN_SYSTEM = "data.own_system_message"
_NO_SPACE = "data.no_space_after_prompt"

Message = dict[str, Any]
Turn = str | tuple[Message, ...]
"""A text, or messages {"role", "content"}, some with a "name"."""


def read_messages(record: Record, column: str, *, weighted: bool = False) -> list[Message]:
    """Return the messages in a column, without those that have nothing but tool calls.

    One message may stand without a list around it. `weighted` keeps a "weight" of 0, which
    OpenAI's format gives to messages that are not trained.

    Raises DataError for a blank message or an unknown role.
    """
    value: Any = record.value(column)
    if isinstance(value, dict) and {"role", "from"} & value.keys():
        value = [value]
    if not isinstance(value, list) or not value:
        kind = "empty" if value == [] else json_type(value)
        raise DataError(f'"{column}" of {record.where} is {kind}, not a list of messages.')
    messages: list[Message] = []
    for number, one in enumerate(value, start=1):
        where = f"{record.where}, message {number}"
        if not isinstance(one, dict):
            raise DataError(f"{where} is {json_type(one)}, not an object with role and content.")
        message = Record(one, where)
        role, content = ("from", "value") if "from" in message else ("role", "content")
        known = _role(message, role)
        read = {role, content, "name", *(["weight"] if weighted else [])}
        extra = [name for name, given in one.items() if name not in read and given]
        if record.report is not None:
            record.report.unused.update(extra)
        has_text = not (one.get(content) is None or str(one[content]).strip() == "")
        if not has_text and {"tool_calls", "function_call"} & {*extra}:
            record.note(_CALLS_ALONE)
        elif has_text or known != "system":
            messages.append({"role": known, "content": message.text(content)})
            if isinstance(one.get("name"), str) and one["name"].strip():
                messages[-1]["name"] = one["name"]
            if weighted and _weight(message) == 0:
                messages[-1]["weight"] = 0
    return messages


def _role(message: Record, column: str) -> str:
    name = message.text(column)
    known = _OTHER_ROLES.get(name, name)
    if known not in ROLES:
        raise DataError(
            f'the role of {message.where} is "{shorten(known)}"; known are {", ".join(ROLES)}.'
            f"{did_you_mean(known, ROLES)}"
        )
    return known


def _weight(message: Record) -> float:
    weight = message.get("weight")
    if weight is not None and weight not in (0, 1):
        raise DataError(f'"weight" of {message.where} is {weight!r}: give 0 or 1.')
    return 1 if weight is None else weight


def read_turn(record: Record, field: str, *, weighted: bool = False) -> Turn:
    """Return the text or the messages of a field."""
    column = record.columns[field]
    if isinstance(record.value(column), str):
        return record.text(column)
    return tuple(read_messages(record, column, weighted=weighted))


def read_prompt(record: Record) -> Turn | None:
    """Return the prompt of a record, if it has one; a text with its input."""
    if "prompt" not in record.columns:
        return None
    turn = read_turn(record, "prompt")
    return with_input(record, turn) if isinstance(turn, str) else turn


def with_input(record: Record, text: str) -> str:
    """Return an instruction, followed by its input where that is not blank, as Alpaca has them."""
    more = record.optional_text("input")
    return text if more is None else f"{text}\n\n{more}"


def conversation(record: Record, prompt: Turn | None, response: Turn = ()) -> tuple[Message, ...]:
    """Return the system message of a record, its prompt and a response as one conversation."""
    messages = with_prompt(prompt, response)
    system = record.optional_text("system")
    if system is None or not messages:
        return messages
    if messages[0]["role"] == "system":
        record.note(_OWN_SYSTEM)
        return messages
    return ({"role": "system", "content": system}, *messages)


def with_prompt(prompt: Turn | None, response: Turn) -> tuple[Message, ...]:
    """Return the response after its prompt, with which a whole conversation begins already."""
    if isinstance(response, str):
        response = ({"role": "assistant", "content": response},)
    if isinstance(prompt, str):
        prompt = ({"role": "user", "content": prompt},)
    if response and response[0]["role"] != "assistant":
        return response
    return (*(prompt or ()), *response)


def are_texts(record: Record, *turns: Turn | None) -> bool:
    """Return whether no turn of a record consists of messages, its system message included."""
    return "system" not in record.columns and not any(isinstance(one, tuple) for one in turns)


def plain(turn: Turn) -> str:
    """Return a text, or the contents of messages, a line each."""
    return turn if isinstance(turn, str) else "\n".join(one["content"] for one in turn)


def join_note(record: Record, prompt: str, responses: Sequence[str]) -> None:
    """Note where a response follows its prompt without a space that one might expect.

    Texts are joined as they are, as in trl: code and Chinese have no spaces there.
    """
    for text in responses:
        ends = prompt[-1:].isalnum() or prompt[-1:] in {*".,:;?!"}
        touches = ends and text[0].isalnum() and not any(map(is_unspaced, (prompt[-1], text[0])))
        if touches and not text.startswith(prompt):
            record.note(_NO_SPACE)
