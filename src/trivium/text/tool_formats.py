"""Formats of tool calls: parsing of the tool calls in a generation.

A model writes tool calls as its chat template does. `find_tool_format` therefore recognizes the
format by rendering a conversation with a call and reading the call back.

Sources: the chat templates of NousResearch Hermes 2 Pro and Qwen, Llama 3.1, Mistral 7B v0.3,
Mistral Small 3.2 and Qwen 3 Coder. As in vLLM, a malformed call is part of the content.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trivium.errors import TokenizerError, shorten
from trivium.text.chat_template import ChatTemplate
from trivium.text.json_types import Schema, read_value
from trivium.text.reasoning import ReasoningReader

_MAX_MALFORMED = 32
"""After this number of malformed calls, the rest of a text is content, so that reading is fast."""
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)


def make_call_id() -> str:
    """Return a random id of 9 letters and digits, the only form that Mistral's templates accept."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True)
class ToolCall:
    """A tool call.

    Args:
        name: the name of the function.
        arguments: the arguments by name.
        id: the id of the call. The message with the tool's result repeats the id.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str = field(default_factory=make_call_id)

    def to_dict(self) -> dict[str, Any]:
        """Return the call in the format of OpenAI's API, with the arguments as a JSON string."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


class ToolFormatError(TokenizerError):
    """The chat template does not render tools, or writes calls in an unknown format."""


class _MalformedError(Exception):
    """Raised if a text cannot become a valid tool call, whatever text follows."""


class _IncompleteError(Exception):
    """Raised if a text is incomplete, but may become a valid tool call."""


class ToolFormat(ABC):
    """A format of tool calls. There is one class for each format.

    The calls of a message are written as `opening`, the calls with `separator` between them, and
    `closing`. `before_arguments` and `after_arguments` enclose the arguments of a call, in JSON.
    """

    name: ClassVar[str]
    marker: ClassVar[str]
    """The string with which tool calls begin."""
    names: ClassVar[tuple[str, ...]]
    """The strings of the format that are special tokens in some tokenizers."""
    ends: ClassVar[str]
    """The character with which complete tool calls end."""
    begins_with_json: ClassVar[bool] = False
    """Whether a message that begins with "{" may be a call, too."""
    has_json_arguments: ClassVar[bool] = True
    """Whether arguments are a JSON object. If not, each argument is a parameter in XML."""
    is_parallel: ClassVar[bool] = True
    """Whether a message may have several calls."""
    opening: ClassVar[str] = ""
    separator: ClassVar[str] = ""
    closing: ClassVar[str] = ""
    after_arguments: ClassVar[str] = ""

    @abstractmethod
    def before_arguments(self, name: str) -> str:
        """Return the text of a tool call to `name` that precedes its arguments."""

    @abstractmethod
    def parse_calls(
        self, text: str, functions: Mapping[str, Schema], *, is_last: bool
    ) -> tuple[list[ToolCall], int]:
        """Parse the tool calls at the start of a text. Returns the calls and their total length.

        Args:
            text: the text.
            functions: the JSON schema of the arguments of each function, by the name of the
                function, for formats that write strings without quotation marks.
            is_last: whether the text is complete.

        Raises _MalformedError or _IncompleteError if there are no valid calls.
        """


class HermesFormat(ToolFormat):
    """The format of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""

    name, marker, ends = "Hermes", "<tool_call>", ">"
    names = ("<tool_call>", "</tool_call>")
    separator = "\n"
    after_arguments = "}\n</tool_call>"

    def before_arguments(self, name: str) -> str:
        """Return the text of a tool call to `name` that precedes its arguments."""
        return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": '

    def parse_calls(
        self, text: str, functions: Mapping[str, Schema], *, is_last: bool
    ) -> tuple[list[ToolCall], int]:
        """Parse one tool call. At the end of a text, the closing tag may be missing."""
        value, stop = _read_json(text, len(self.marker), "{")
        after, closing = text[stop:].lstrip(), "</tool_call>"
        if after.startswith(closing):
            return [_to_call(value, "arguments")], text.index(closing, stop) + len(closing)
        if is_last and not after:
            return [_to_call(value, "arguments")], len(text)
        raise _IncompleteError if closing.startswith(after) else _MalformedError


class LlamaFormat(ToolFormat):
    """The format of Llama 3: `{"name": ..., "parameters": ...}`, also after `<|python_tag|>`.

    Without `<|python_tag|>`, only the beginning of a message is read as a call. Some models write
    several calls, separated by ";", although the template allows only one.
    """

    name, marker, ends = "Llama 3", "<|python_tag|>", "}"
    names = ("<|python_tag|>",)
    begins_with_json = True
    is_parallel = False
    after_arguments = "}"

    _BEGINNING = re.compile(r"\s*;?\s*(?:<\|python_tag\|>)?")

    def before_arguments(self, name: str) -> str:
        """Return the text of a tool call to `name` that precedes its arguments."""
        return f'{{"name": {json.dumps(name)}, "parameters": '

    def parse_calls(
        self, text: str, functions: Mapping[str, Schema], *, is_last: bool
    ) -> tuple[list[ToolCall], int]:
        """Parse one tool call at the start of a text."""
        beginning = self._BEGINNING.match(text)
        assert beginning is not None
        value, stop = _read_json(text, beginning.end(), "{")
        return [_to_call(value, "parameters")], stop


class MistralFormat(ToolFormat):
    """The format of Mistral in 2024: `[TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]`."""

    name, marker, ends = "Mistral", "[TOOL_CALLS]", "]"
    names = ("[TOOL_CALLS]",)
    opening, separator, closing = "[TOOL_CALLS] [", ", ", "]"
    after_arguments = "}"

    def before_arguments(self, name: str) -> str:
        """Return the text of a tool call to `name` that precedes its arguments."""
        return f'{{"name": {json.dumps(name)}, "arguments": '

    def parse_calls(
        self, text: str, functions: Mapping[str, Schema], *, is_last: bool
    ) -> tuple[list[ToolCall], int]:
        """Parse a list of tool calls, which must not be empty."""
        values, stop = _read_json(text, len(self.marker), "[")
        if not values:
            raise _MalformedError
        return [_to_call(value, "arguments") for value in values], stop


class MistralArgsFormat(ToolFormat):
    """The format of Mistral since 2025: `[TOOL_CALLS]name[ARGS]{...}` for each call.

    An id may precede the arguments: `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`.
    """

    name, marker, ends = "Mistral with [ARGS]", "[TOOL_CALLS]", "}"
    names = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")

    _HEADER = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?\[ARGS\]")
    _PART_OF_HEADER = re.compile(r"\s*[^\s\[\]{}]*\s*(\[[A-Z_]*(\][\s\w]*(\[[A-Z_]*)?)?)?")

    def before_arguments(self, name: str) -> str:
        """Return the text of a tool call to `name` that precedes its arguments."""
        return f"[TOOL_CALLS]{name}[ARGS]"

    def parse_calls(
        self, text: str, functions: Mapping[str, Schema], *, is_last: bool
    ) -> tuple[list[ToolCall], int]:
        """Parse one tool call at the start of a text."""
        header = self._HEADER.match(text, len(self.marker))
        if header is None:
            is_part = self._PART_OF_HEADER.fullmatch(text, len(self.marker))
            raise _IncompleteError if is_part else _MalformedError
        arguments, stop = _read_json(text, header.end(), "{")
        value = {"name": header[1], "arguments": arguments, "id": header[2]}
        return [_to_call(value, "arguments")], stop


class QwenXMLFormat(ToolFormat):
    """The format of Qwen 3 Coder and Qwen 3.5, and of Nemotron 3, in XML.

    A call is `<tool_call><function=f><parameter=x>value</parameter></function></tool_call>`, with
    line breaks. Strings have no quotation marks. Other values are JSON.
    """

    name, marker, ends = "Qwen XML", "<tool_call>", ">"
    names = ("<tool_call>", "</tool_call>")
    has_json_arguments = False
    separator = "\n"
    after_arguments = "</function>\n</tool_call>"

    _NAME = re.compile(r"[^\s<>]+>")

    def before_arguments(self, name: str) -> str:
        """Return the text of a tool call to `name` that precedes its arguments."""
        return f"<tool_call>\n<function={name}>\n"

    def parse_calls(
        self, text: str, functions: Mapping[str, Schema], *, is_last: bool
    ) -> tuple[list[ToolCall], int]:
        """Parse one tool call. At the end of a text, the last closing tag may be missing."""
        name, stop = self._read_name(text, _skip_expected(text, len(self.marker), "<function="))
        root = functions.get(name, {})
        properties = root.get("properties")
        schemas = properties if isinstance(properties, Mapping) else {}
        arguments = dict[str, Any]()
        while True:
            start = _skip_expected(text, stop, "<parameter=", "</function>")
            if text[start - 1] == ">":  # the end of the function
                break
            key, start = self._read_name(text, start)
            value, closing, _ = text[start:].partition("</parameter>")
            if not closing:
                raise _IncompleteError
            stop = start + len(value) + len(closing)
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = read_value(value, schemas.get(key, {}), root)
        if not is_last or text[start:].strip():
            start = _skip_expected(text, start, "</tool_call>")
        else:
            start = len(text)
        return [_to_call({"name": name, "arguments": arguments}, "arguments")], start

    def _read_name(self, text: str, start: int) -> tuple[str, int]:
        """Read a name that ends with ">". Returns the name and the offset after the ">"."""
        match = self._NAME.match(text, start)
        if match is None:
            raise _MalformedError if re.search(r"[\s<>]", text[start:]) else _IncompleteError
        return match[0][:-1], match.end()


TOOL_FORMATS: tuple[ToolFormat, ...] = (
    HermesFormat(),
    LlamaFormat(),
    MistralFormat(),
    MistralArgsFormat(),
    QwenXMLFormat(),
)
"""The formats that can be read."""


def _read_json(text: str, start: int, bracket: str) -> tuple[Any, int]:
    """Read a JSON object or list in a text. Returns the value and the offset where it ends.

    Args:
        text: the text.
        start: the offset of the value, or of the spaces before it.
        bracket: the bracket with which the value begins.

    Raises _IncompleteError if the brackets of the value are not closed, and _MalformedError if the
    value is not JSON.
    """
    start += len(text[start:]) - len(text[start:].lstrip())
    if text[start : start + 1] not in ("", bracket):
        raise _MalformedError
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start):
        if match[0] == '"':  # a string without an end
            break
        depth += (match[0] in "{[") - (match[0] in "}]")
        if depth == 0:
            try:
                return json.loads(text[start : match.end()]), match.end()
            except (ValueError, RecursionError):
                raise _MalformedError from None
    raise _IncompleteError


def _skip_expected(text: str, start: int, *expected: str) -> int:
    """Skip spaces and then one of the expected strings. Returns the offset after this string.

    Raises _IncompleteError if the text ends too early, and _MalformedError if other text follows.
    """
    after = text[start:].lstrip()
    for each in expected:
        if after.startswith(each):
            return len(text) - len(after) + len(each)
    begins = any(each.startswith(after) for each in expected)
    raise _IncompleteError if begins else _MalformedError


def _to_call(value: Any, key: str) -> ToolCall:
    """Convert a JSON value to a tool call. The arguments are the value of `key`.

    Raises _MalformedError if the value is not a call, or if JSON in UTF-8 cannot express the call
    (NaN, lone surrogates).
    """
    if not isinstance(value, dict):
        raise _MalformedError
    name, arguments, call_id = value.get("name"), value.get(key), value.get("id")
    if not (isinstance(name, str) and name and isinstance(arguments, dict)):
        raise _MalformedError
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise _MalformedError from None
    if not isinstance(call_id, str) or not re.fullmatch(r"\w{1,64}", call_id, re.ASCII):
        call_id = make_call_id()
    return ToolCall(name, arguments, call_id)


class ToolCallReader:
    """Splits a streamed generation into content and tool calls.

    The result does not depend on how the text is chunked. Spaces and line breaks around calls
    belong to the format and are not part of the content.

    Args:
        format: the format of the calls.
        functions: the JSON schema of the arguments of each function, by the name of the function.
    """

    def __init__(self, format: ToolFormat, functions: Mapping[str, Schema] | None = None) -> None:
        self._format, self._functions = format, functions or {}
        self._held, self._space, self._num_malformed = "", "", 0
        self._has_content, self._after_call = False, False

    def push(self, chunk: str, *, is_last: bool = False) -> tuple[str, list[ToolCall]]:
        """Add a chunk of text. Returns the new content, and the calls that are now complete.

        `is_last` is True for the last chunk of the text.
        """
        content, calls = "", list[ToolCall]()
        self._held += chunk
        may_end = is_last or any(end in chunk for end in self._format.ends)
        while self._held:
            length, is_start = self._find_start(is_last=is_last)
            content += self._take_content(length)
            if not is_start or not may_end:
                break
            try:
                new, length = self._format.parse_calls(self._held, self._functions, is_last=is_last)
            except (_MalformedError, _IncompleteError) as error:
                if isinstance(error, _IncompleteError) and not is_last:
                    break
                # The beginning of the call is content. The text after it is read again.
                self._num_malformed += 1
                marked = self._held.startswith(self._format.marker)
                content += self._take_content(len(self._format.marker) if marked else 1)
                continue
            calls += new
            self._held, self._space, self._after_call = self._held[length:], "", True
        if is_last:
            content += self._take_content(len(self._held))
            content += "" if self._after_call else self._space
            self._space = ""
        return content, calls

    def _find_start(self, *, is_last: bool) -> tuple[int, bool]:
        """Return the number of held characters that are content, and whether a call may follow.

        If no call follows, the remaining characters may be the beginning of a marker.
        """
        text, marker = self._held, self._format.marker
        if self._num_malformed >= _MAX_MALFORMED:
            return len(text), False
        if self._format.begins_with_json and not self._has_content:
            before = re.match(r"\s*;?\s*" if self._after_call else r"\s*", text)
            assert before is not None
            if text.startswith("{", before.end()):
                return 0, True
            if before.end() == len(text) and not is_last:
                return 0, False
        if (start := text.find(marker)) >= 0:
            return start, True
        sizes = range(0 if is_last else min(len(marker) - 1, len(text)), 0, -1)
        return len(text) - next((n for n in sizes if text.endswith(marker[:n])), 0), False

    def _take_content(self, length: int) -> str:
        """Remove `length` characters from the start of the held text. Returns the content in them.

        Spaces are content only between other content, and around a text without calls.
        """
        text, self._held = self._space + self._held[:length], self._held[length:]
        if self._after_call and not self._has_content:
            text = text.lstrip()
        content = text.rstrip()
        self._space = text[len(content) :]
        if content:
            self._has_content, self._after_call = True, False
        return content


def find_tool_format(template: ChatTemplate) -> ToolFormat:
    """Return the format in which a chat template writes tool calls.

    The template renders a conversation with a call. The format is the one that reads this call back
    from the rendered text.

    Raises ToolFormatError if the template does not render tools or tool calls, or writes calls in a
    format that is not known.
    """
    if not template.renders_tools:
        raise ToolFormatError(
            "the chat template of this model does not render tools, so that the model would not "
            "see them: leave tools out, or use a model whose template has them."
        )
    name, arguments = "f3141592653", {"x2718281828": "y1618033988"}
    call = {"id": make_call_id(), "type": "function"}
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": [*arguments]}
    tool = {"name": name, "description": "A function.", "parameters": parameters}
    calls = [{**call, "function": {"name": name, "arguments": arguments}}]
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    written, reason = "", "it leaves the call out."
    try:
        text, spans = template.get_turns(turns, tools=[{"type": "function", "function": tool}])
        written = text[slice(*spans[-1])]
    except TokenizerError as error:
        reason = str(error)
    if name not in written:
        raise ToolFormatError(
            "it is unknown how this model writes tool calls, because its chat template does not "
            f"render a message with a call: {reason}"
        )
    _, turn = ReasoningReader().push(written, is_last=True)
    for each in TOOL_FORMATS:
        _, read = ToolCallReader(each, {name: parameters}).push(turn)
        if [(one.name, one.arguments) for one in read] == [(name, arguments)]:
            return each
    for long, short in ((name, "f"), ("x2718281828", "x"), ("y1618033988", "y")):
        written = written.replace(long, short)
    known = ", ".join(each.name for each in TOOL_FORMATS)
    raise ToolFormatError(
        "the chat template of this model writes tool calls in a format that cannot be read: a call "
        f"of f with x = y is written as {shorten(written.strip(), 200)!r}. The formats that can be "
        f"read are {known}."
    )
