"""Chat templates, which convert conversations to text."""

from __future__ import annotations

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

Message = Mapping[str, str]
Span = tuple[int, int]

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'user' %}{{ message['name'] or 'User' }}: "
    "{{ message['content'] }}\n"
    "{% elif message['role'] == 'tool' %}Tool: {{ message['content'] }}\n"
    "{% else %}Assistant: {{ message['content'] }}{{ eos_token }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The chat template for models without one."""

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
        self.template, self.tokens = _compile_template(source), dict(tokens)
        self._literals = literals or Literals({}, {})

    @classmethod
    def of(cls, source: str, tokenizer: Tokenizer) -> ChatTemplate:
        """Create a chat template with the special tokens of a tokenizer.

        If `tokenizer.split_special_tokens` is True, special-token names in messages are encoded as
        plain text.
        """
        tokens = {f"{role}_token": token for role, token in tokenizer.roles.items()}
        literals = tokenizer.literal_encoders if tokenizer.split_special_tokens else None
        return cls(source, tokens, literals)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False
    ) -> ChatText:
        """Render a conversation as text.

        `add_generation_prompt` appends the header of the assistant's next turn.

        Raises TokenizerError if the template rejects the messages.
        """
        protected = self._render_text(self._protect_messages(messages), add_generation_prompt)
        return ChatText.from_protected(protected, self._literals)

    def end_of_turn(self, tokenizer: Tokenizer) -> int | None:
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
                after = self._render_text(messages, False).rpartition(answer)[2].lstrip()
            except TokenizerError:
                continue
            starts = [name for name in names if after.startswith(name)]
            if starts:
                return names[max(starts, key=len)]
        return None

    def _protect_messages(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        """Return copies of the messages, with marks in place of special-token names."""
        protect = self._literals.protect
        return [
            {k: protect(v) if isinstance(v, str) else v for k, v in one.items()} for one in messages
        ]

    def _render_text(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """Render messages as text, without marks around {% generation %} blocks."""
        return _GENERATION.sub("", self._render_marked(messages, add_generation_prompt))

    def _render_marked(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """Render messages as text, with marks around the {% generation %} blocks of the template.

        Raises TokenizerError if the template rejects the messages.
        """
        variables: dict[str, Any] = {"bos_token": "", "eos_token": "", **self.tokens}
        try:
            return self.template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **variables,
            )
        except Exception as error:
            raise TokenizerError(
                f"The chat template refuses these messages: {_summarize(error)}."
            ) from None

    def responses(self, messages: Sequence[Message]) -> tuple[ChatText, list[Span]]:
        """Render a conversation. Returns its text and the character offsets of assistant turns.

        An assistant turn is the text of a block from {% generation %} to {% endgeneration %} in the
        template. If the template has no such blocks, an assistant turn starts after the generation
        prompt and ends where the next turn starts.

        Raises TokenizerError if the template rejects the messages, or if a turn cannot be found in
        the text.
        """
        text, spans = self._find_responses(self._protect_messages(messages))
        restored = [
            (len(self._literals.restore(text[:start])), len(self._literals.restore(text[:stop])))
            for start, stop in spans
        ]
        return ChatText.from_protected(text, self._literals), restored

    def _find_responses(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """Render protected messages. Returns the text, and the offsets of the assistant turns.

        In protected messages, marks replace special-token names. The returned text contains the
        same marks. The offsets are pairs (start, stop) in characters.
        """
        marked = self._render_marked(messages, False)
        if _OPEN in marked:
            return _extract_spans(marked)
        spans: list[Span] = []
        offset = 0
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                spans.append(self._find_turn(marked, messages, index, offset))
                offset = spans[-1][1]
            else:
                content = message["content"].strip()
                offset = max(offset, marked.find(content, offset) + len(content))
        return marked, spans

    def _find_turn(self, text: str, messages: Sequence[Message], index: int, offset: int) -> Span:
        """Return the start and stop offset of one assistant turn in the text of a conversation.

        Args:
            text: the rendered text of all messages.
            messages: all messages.
            index: the index of the turn in `messages`.
            offset: the offset where the previous turn ends.
        """
        after, header = self._render_text(messages[: index + 1], False), ""
        try:
            before = self._render_text(messages[:index], True)
            header = before.removeprefix(self._render_text(messages[:index], False))
        except TokenizerError:  # some templates refuse an empty conversation
            before = after
        if before != after and text.startswith(before) and text.startswith(after):
            return len(before), len(after)
        # The template writes a turn differently if more turns follow (it may drop the reasoning):
        # search for the content after the generation prompt.
        content = messages[index]["content"].strip()
        prompt = text.find(header, offset)
        start = text.find(content, offset if prompt < 0 else prompt + len(header))
        if not content or start < 0:
            raise TokenizerError(
                f"The assistant's answer in message {index + 1} cannot be found in the text of the "
                "chat template: mark it there with {% generation %} and {% endgeneration %}, or "
                "use another template."
            )
        stop, end = start + len(content), after.rfind(content) + len(content)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(text[stop:], after[end:]))
        return start, stop + len(list(same))


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
        """Return the rendered text of the block between two marks."""
        return f"{_OPEN}{caller()}{_CLOSE}"


def _extract_spans(marked: str) -> tuple[str, list[Span]]:
    """Remove the marks of {% generation %} blocks from a text.

    Returns the text without marks, and the character offsets (start, stop) of each block.
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
