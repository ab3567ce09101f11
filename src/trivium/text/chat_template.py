"""Chat templates, which convert conversations to text."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trivium.errors import TokenizerError, shorten
from trivium.text.literals import ChatText, Literals
from trivium.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""A message: role and content, and optionally name, tool_calls, reasoning_content and others."""
Tools = Sequence[Mapping[str, Any]]
"""The tools that a model may call, in OpenAI's format: functions with a JSON schema."""
Span = tuple[int, int]

PLAIN_TEMPLATE = (
    "{% for tool in tools or [] %}{{ 'Tools:\n' if loop.first else '' }}"
    "{{ tool | tojson }}{{ '\n\n' if loop.last else '\n' }}{% endfor %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'user' %}{{ message['name'] or 'User' }}: "
    "{{ message['content'] }}\n"
    "{% elif message['role'] == 'tool' %}Tool: {{ message['content'] }}\n"
    "{% else %}Assistant: {{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\n' if message['content'] or not loop.first else '' }}"
    "{% set call = call['function'] or call %}<tool_call>\n"
    '{"name": {{ call["name"] | tojson }}, "arguments": {{ call["arguments"] | tojson }}}'
    "\n</tool_call>{% endfor %}{{ eos_token }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The chat template for models without one. Tool calls have the format of Hermes and Qwen."""

TEMPLATE_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
"""The variables of chat templates that `ChatTemplate.render` sets."""

# Marks around {% generation %} blocks. Unicode reserves these code points; no text contains them.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_GENERATION = re.compile(f"[{_OPEN}{_CLOSE}]")


class ChatTemplate:
    """A Jinja chat template as in `transformers`, rendered in a sandbox.

    Args:
        source: the text of the template.
        tokens: the special tokens that the template may use, by variable names such as `eos_token`.
        literals: an encoder that treats special-token names in messages as plain text, so that a
            message cannot inject special tokens. If None, such names are encoded as special tokens.

    Raises TokenizerError if the template cannot be parsed.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str], literals: Literals | None = None
    ) -> None:
        self.source, self.template, self.tokens = source, _compile_template(source), dict(tokens)
        self._literals = literals or Literals({}, {})

    @classmethod
    def of(cls, source: str, tokenizer: Tokenizer) -> ChatTemplate:
        """Create a chat template with the special tokens of a tokenizer.

        If `tokenizer.split_special_tokens` is True, special-token names in messages are encoded as
        plain text.
        """
        tokens = {f"{role}_token": token for role, token in tokenizer.roles.items()}
        literals = tokenizer.literals if tokenizer.split_special_tokens else None
        return cls(source, tokens, literals)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Tools | None = None,
        **variables: Any,
    ) -> ChatText:
        """Render a conversation as text.

        Args:
            messages: the messages.
            add_generation_prompt: whether to append the header of the assistant's next turn.
            tools: the tools that the model may call.
            variables: additional variables of the template, such as `enable_thinking`.

        Raises TokenizerError if the template rejects the messages.
        """
        conversation = self._protect(messages, tools, variables)
        protected = conversation.render_text(add_generation_prompt=add_generation_prompt)
        return ChatText.from_protected(protected, self._literals)

    @functools.cached_property
    def renders_tools(self) -> bool:
        """Whether the template renders tools, determined by rendering an example."""
        name = "f3141592653"
        parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}}
        function = {"name": name, "description": "A function.", "parameters": parameters}
        turns, tools = (
            [{"role": "user", "content": "Hi"}],
            [{"type": "function", "function": function}],
        )
        try:
            return name in self.render(turns, add_generation_prompt=True, tools=tools)
        except TokenizerError:
            return False

    def find_end_of_turn(self, tokenizer: Tokenizer) -> int | None:
        """Return the id of the token that ends the assistant's turn, or None if there is none.

        The token is found by rendering an example. In some templates, it is the first token of the
        next turn.
        """
        answer = "3141592653"
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}]
        added = tokenizer.backend.get_added_tokens_decoder()
        names = {token.content: index for index, token in added.items()}
        for messages in (turns, [*turns, turns[0]]):
            try:
                after = self.render(messages).rpartition(answer)[2].lstrip()
            except TokenizerError:
                continue
            starts = [name for name in names if after.startswith(name)]
            if starts:
                return names[max(starts, key=len)]
        return None

    def get_turns(
        self, messages: Sequence[Message], *, tools: Tools | None = None, **variables: Any
    ) -> tuple[ChatText, list[Span]]:
        """Render a conversation. Returns its text and the character offsets of assistant turns.

        An assistant turn is the text of a block from {% generation %} to {% endgeneration %} in the
        template. If the template has no such blocks, an assistant turn starts after the generation
        prompt and ends where the next turn starts.

        The arguments are those of `render`.

        Raises TokenizerError if the template rejects the messages, or if a turn cannot be found in
        the text.
        """
        text, spans = self._protect(messages, tools, variables).get_turns()
        restored = [
            (len(self._literals.restore(text[:start])), len(self._literals.restore(text[:stop])))
            for start, stop in spans
        ]
        return ChatText.from_protected(text, self._literals), restored

    def _protect(
        self, messages: Sequence[Message], tools: Tools | None, variables: Mapping[str, Any]
    ) -> _Conversation:
        """Return a conversation in which placeholders replace special-token names in messages.

        Raises TokenizerError if a variable has the name of a special token.
        """
        for name in variables:
            if name in ("documents", *self.tokens):
                raise TokenizerError(f"{name} cannot be set as a variable of the chat template.")
        return _Conversation(
            self.template,
            self._protect_value([_add_reasoning_keys(message) for message in messages]),
            {
                **{"bos_token": "", "eos_token": "", "documents": None},
                **self.tokens,
                **self._protect_value(dict(variables)),
                "tools": self._protect_value(list(tools)) if tools else None,
            },
        )

    def _protect_value(self, value: Any) -> Any:
        """Return a copy of a JSON value, with special-token names replaced by placeholders."""
        if isinstance(value, str):
            return self._literals.protect(value)
        if isinstance(value, Mapping):
            pairs = value.items()
            return {self._protect_value(key): self._protect_value(each) for key, each in pairs}
        if isinstance(value, list | tuple):
            return [self._protect_value(each) for each in value]
        return value


class _Conversation:
    """Protected messages, with the template and its other variables.

    In protected messages, placeholders replace special-token names. The rendered text contains the
    same placeholders. Offsets are pairs (start, stop) in characters of this text.
    """

    def __init__(
        self,
        template: jinja2.Template,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
    ) -> None:
        self._template, self._messages, self._variables = template, messages, variables

    def render_text(self, stop: int | None = None, *, add_generation_prompt: bool = False) -> str:
        """Render the messages before index `stop`. Returns the text."""
        return _GENERATION.sub("", self._render_marked(stop, add_generation_prompt))

    def _render_marked(self, stop: int | None = None, add_generation_prompt: bool = False) -> str:
        """Render the messages before index `stop`, with delimiters around {% generation %} blocks.

        If the template rejects the messages, they are rendered again with the arguments of tool
        calls as JSON strings, which some templates expect. Raises TokenizerError if the template
        rejects these messages, too.
        """
        messages = copy.deepcopy([*self._messages[:stop]])
        variables = {**self._variables, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(messages=messages, **variables)
        except Exception as error:
            with contextlib.suppress(Exception):
                if any(message.get("tool_calls") for message in messages):
                    texts = list(map(_write_arguments, self._messages[:stop]))
                    return self._template.render(messages=texts, **variables)
            raise TokenizerError(
                f"The chat template refuses these messages: {_summarize(error)}."
            ) from None

    def get_turns(self) -> tuple[str, list[Span]]:
        """Render all messages. Returns the text, and the offsets of the assistant turns."""
        marked = self._render_marked()
        if _OPEN in marked:
            return _extract_spans(marked)
        spans: list[Span] = []
        offset = 0
        for index, message in enumerate(self._messages):
            if message["role"] == "assistant":
                spans.append(self._find_turn(marked, index, offset))
                offset = spans[-1][1]
            else:
                content = _strip_content(message)
                if (start := marked.find(content, offset)) >= 0:
                    offset = start + len(content)
        return marked, spans

    def _find_turn(self, text: str, index: int, offset: int) -> Span:
        """Return the start and stop offset of one assistant turn in the text of a conversation.

        Args:
            text: the rendered text of all messages.
            index: the index of the turn in the messages.
            offset: the offset where the previous turn ends.
        """
        after, header = self.render_text(index + 1), ""
        try:
            before = self.render_text(index, add_generation_prompt=True)
            header = before.removeprefix(self.render_text(index))
        except TokenizerError:  # some templates refuse an empty conversation
            before = after
        if before != after and text.startswith(before) and text.startswith(after):
            return len(before), len(after)
        # The template writes a turn differently if more turns follow (it may drop the reasoning):
        # search for the content after the generation prompt.
        content = _strip_content(self._messages[index])
        header = header.partition("<think>")[0]
        prompt = text.find(header, offset)
        first = offset if prompt < 0 else prompt + len(header)
        if calls := self._messages[index].get("tool_calls"):
            same = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
            turn = after[sum(1 for _ in same) :]
            name = str((calls[0].get("function") or calls[0]).get("name"))
            if found := _find_suffix(text, turn, offset, name):
                return found
        start = text.find(content, first)
        if not content or calls or start < 0:
            raise TokenizerError(
                f"The assistant's answer in message {index + 1} cannot be found in the text of the "
                "chat template: mark it there with {% generation %} and {% endgeneration %}, or "
                "use another template."
            )
        stop, end = start + len(content), after.rfind(content) + len(content)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(text[stop:], after[end:]))
        return start, stop + len(list(same))


def parse_arguments(message: Message) -> dict[str, Any]:
    """Return a message with the arguments of its tool calls parsed to objects, as templates expect.

    In OpenAI's API, arguments are JSON strings. A string that is not a JSON object is unchanged.
    """

    def parse(arguments: Any) -> Any:
        """Parse a JSON string. Returns the string itself if it does not contain an object."""
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(arguments, str) and isinstance(value := json.loads(arguments), dict):
                return value
        return arguments

    return _map_arguments(message, parse)


def _write_arguments(message: Message) -> dict[str, Any]:
    """Return a message with the arguments of its tool calls as JSON strings."""

    def write(arguments: Any) -> Any:
        """Return the JSON string of an object. A string is returned unchanged."""
        return arguments if isinstance(arguments, str) else json.dumps(arguments)

    return _map_arguments(message, write)


def _map_arguments(message: Message, function: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a message with a function applied to the arguments of each tool call."""
    calls = []
    for call in message.get("tool_calls") or ():
        inner = call.get("function")
        if isinstance(inner, Mapping) and "arguments" in inner:
            call = {**call, "function": {**inner, "arguments": function(inner["arguments"])}}
        elif "arguments" in call:
            call = {**call, "arguments": function(call["arguments"])}
        calls.append(call)
    return {**message, "tool_calls": calls} if calls else dict(message)


def _add_reasoning_keys(message: Message) -> Message:
    """Return a message with its reasoning under both keys that templates use.

    The keys are `reasoning_content` and `thinking`. The given key may also be `reasoning`.
    """
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((message[name] for name in names if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _strip_content(message: Mapping[str, Any]) -> str:
    """Return the content of a message without surrounding spaces, or "" if it is not a string."""
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""


def _find_suffix(text: str, turn: str, offset: int, part: str) -> Span | None:
    """Return the offsets of the longest suffix of a turn that occurs in a text, or None.

    A suffix starts at the beginning of a line, or after ">" or "]". It contains `part`.

    Args:
        text: the text.
        turn: the turn.
        offset: the offset from which the text is searched.
        part: a string that the suffix must contain.
    """
    for match in re.finditer(r"^|(?<=[\n>\]])", turn):
        end = turn[match.start() :]
        if part not in end:
            return None
        if (start := text.find(end, offset)) >= 0:
            return start, start + len(end)
    return None


@functools.lru_cache(maxsize=16)
def _compile_template(source: str) -> jinja2.Template:
    """Compile a Jinja chat template in a sandbox, with the helper functions of transformers.

    Raises TokenizerError if the template cannot be parsed.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_template_error
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    # Jinja's own filter escapes JSON for HTML.
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences
            return environment.from_string(source)
    except Exception as error:  # a template is a program
        raise TokenizerError(f"The chat template cannot be parsed: {_summarize(error)}.") from None


class _Generation(Extension):
    """Defines the Jinja block {% generation %}, which encloses an assistant turn."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block. Returns a call of `_mark_block` with the content of the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark_block"), [], [], body).set_lineno(line)

    def _mark_block(self, caller: Callable[[], str]) -> str:
        """Return the rendered text of the block between two delimiters."""
        return f"{_OPEN}{caller()}{_CLOSE}"


def _extract_spans(marked: str) -> tuple[str, list[Span]]:
    """Remove the delimiters of {% generation %} blocks from a text.

    Returns the text without delimiters, and the character offsets (start, stop) of each block.
    """
    text, starts, spans = "", [], []
    for part in re.split(f"([{_OPEN}{_CLOSE}])", marked):
        if part == _OPEN:
            starts.append(len(text))
        elif part == _CLOSE:
            spans.append((starts.pop(), len(text)))
        else:
            text += part
    return text, spans


def _raise_template_error(message: str) -> NoReturn:
    """Raise a TemplateError. Chat templates call this function as `raise_exception`."""
    raise jinja2.TemplateError(message)


def _summarize(error: Exception) -> str:
    """Return the message of an error, or its type if it has none, in at most 300 characters."""
    return shorten(str(error) or type(error).__name__, 300)
