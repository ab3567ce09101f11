"""Conversations as text, by the chat template of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
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
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
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
        given: dict[str, Any] = {"bos_token": "", "eos_token": "", **self.tokens}
        try:
            return self.template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **given
            )
        except jinja2.TemplateError as error:
            raise TokenizerError(f"the chat template refuses these messages: {error}.") from None

    def responses(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, list[tuple[int, int]]]:
        """The whole text, and the characters of it that the assistant says, ends included."""
        whole, spans = self.render(messages), []
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            start = len(self.render(messages[:place], add_generation_prompt=True))
            stop = len(self.render(messages[: place + 1]))
            spans.append((min(start, len(whole)), min(stop, len(whole))))
        return whole, spans


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
