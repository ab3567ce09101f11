"""Conversations as text, by the chat template of a tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trivium.errors import TokenizerError

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'user' %}User: {{ message['content'] }}\n"
    "{% else %}Assistant: {{ message['content'] }}{{ eos_token }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models that have none."""

# Around what a template says is generated; no text has these (they are no characters by Unicode).
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
# What a template can raise when messages are not as it expects; the sandbox keeps the rest away.
_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError)


class ChatTemplate:
    """A Jinja template as `transformers` has them, run in a sandbox.

    Args:
        source: of the template.
        tokens: `bos_token`, `eos_token` and others by name, which the template may write.

    Raises:
        TokenizerError: the template cannot be read.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        environment.filters["tojson"] = _to_json
        self.tokens = dict(tokens)
        try:
            self.template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TokenizerError(f"the chat template cannot be read: {error}.") from None

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = False
    ) -> str:
        """The text of a conversation, at whose end the assistant may be asked to speak.

        Raises TokenizerError where the template does not take these messages.
        """
        marked = self._render(messages, add_generation_prompt)
        return marked.replace(_OPEN, "").replace(_CLOSE, "")

    def _render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        given: dict[str, Any] = {"bos_token": "", "eos_token": "", **self.tokens}
        try:
            return self.template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **given,
            )
        except _REFUSALS as error:
            raise TokenizerError(f"the chat template refuses these messages: {error}.") from None

    def responses(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, list[tuple[int, int]]]:
        """The whole text, and the characters of it that the assistant says, ends included.

        They are what the template has between {% generation %} and {% endgeneration %}; else what
        stands between the text that asks the assistant to speak and the next turn.

        Raises TokenizerError where the template does not take these messages, or what is said
        cannot be found in its text.
        """
        marked = self._render(messages, False)
        if _OPEN in marked:
            return _told_spans(marked)
        spans, behind = [], 0
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                span = self._span(marked, messages, place, behind)
                spans.append(span)
                behind = span[1]
            else:
                said = message["content"].strip()
                behind = max(behind, marked.find(said, behind) + len(said))
        return marked, spans

    def _span(
        self, whole: str, messages: Sequence[Mapping[str, str]], place: int, behind: int
    ) -> tuple[int, int]:
        """Where a turn of the assistant stands in the text, not before `behind`."""
        after, header = self.render(messages[: place + 1]), ""
        try:
            before = self.render(messages[:place], add_generation_prompt=True)
            header = before.removeprefix(self.render(messages[:place]))
        except TokenizerError:  # some take no conversation that is empty
            before = after
        if before != after and whole.startswith(before) and whole.startswith(after):
            return len(before), len(after)
        # A template that writes a turn otherwise when more follow: look for what was said, behind
        # what asks the assistant to speak.
        said = messages[place]["content"].strip()
        asked = whole.find(header, behind)
        start = whole.find(said, behind if asked < 0 else asked + len(header))
        if not said or start < 0:
            raise TokenizerError(
                f"what the assistant says in message {place + 1} cannot be found in the text that "
                "the chat template makes: mark it there with {% generation %} and "
                "{% endgeneration %}, or use another template."
            )
        stop, end = start + len(said), after.rfind(said) + len(said)
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(whole[stop:], after[end:]))
        return start, stop + len(list(alike))


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: marks what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as a call that puts marks around it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


def _told_spans(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without its marks, and the places that were marked."""
    text, starts, spans = "", [], []
    for piece in re.split(f"([{_OPEN}{_CLOSE}])", marked):
        if piece == _OPEN:
            starts.append(len(text))
        elif piece == _CLOSE:
            spans.append((starts.pop(), len(text)))
        else:
            text += piece
    return text, spans


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter would write it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
