"""The help of commands in the reader's language, wrapped to the terminal's width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from trivium.messages import translated, translated_paragraphs

_WIDE = "[\u2e80-\uff60]"
_OPENS, _ENDS = "[\uff08\u300a]", "[\uff0c\u3002\uff1a\uff1b\uff1f\uff01\uff09\u300b\u3001)\\]]"
# Lists of kinds (objectives, presets): the catalog has {names} in their place, so that a new kind
# needs no new translation.
_NAMES = re.compile(r"[a-z0-9][\w-]*(?:, (?!or )[a-z0-9][\w-]*){3,}")
_WORDS_OF_CLICK = ("[default: ", "required]")


class HelpFormatter(TyperCommand.context_class.formatter_class):
    """Click's, which counts characters and ends lines at spaces.

    While it wraps, a space after every wide character makes it two columns, where a line may end;
    before a punctuation mark it is one that ends no line.
    """

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """The line of a command's arguments."""
        super().write_usage(prog, args, prefix or translated("Usage: "))

    def write_heading(self, heading: str) -> None:
        """Such as Options."""
        self.write(f"{'':>{self.current_indent}}{translated(f'{heading}:')}\n")

    def write_text(self, text: str) -> None:
        """Paragraphs."""
        super().write_text(_spread(text))

    def write_dl(self, rows: Sequence[tuple[str, str]], *args: Any, **options: Any) -> None:
        """Names, and what each is."""
        super().write_dl([(name, _spread(text)) for name, text in rows], *args, **options)

    def getvalue(self) -> str:
        """All that was written."""
        return re.sub(f"({_WIDE})[ \xa0]", r"\1", super().getvalue())


class HelpContext(TyperCommand.context_class):
    """Click's, with that formatter."""

    formatter_class = HelpFormatter


def _spread(text: str) -> str:
    text = translated(text)
    for word in _WORDS_OF_CLICK:
        text = text.replace(word, translated(word))
    text = re.sub(f"({_WIDE}(?={_ENDS})|{_OPENS})", "\\1\xa0", text)
    return re.sub(f"({_WIDE})(?!\xa0)", r"\1 ", text)


def in_readers_language(command: Any) -> Any:
    """A command with its help, and that of its parameters and of commands inside, translated."""
    inside = getattr(command, "commands", {})
    for one in inside.values() if isinstance(inside, dict) else ():  # others come when asked for
        in_readers_language(one)
    command.context_class = HelpContext
    for one in (command, *command.params):
        for name in ("help", "short_help", "epilog", "show_default"):
            text = getattr(one, name, None)
            if isinstance(text, str) and " " in text:  # a word alone is a value
                setattr(one, name, _translated_help(text))
    return command


def _translated_help(text: str) -> str:
    text = translated_paragraphs(text)
    names = _NAMES.search(text)
    listed = names[0] if names else "{names}"
    return translated(text.replace(listed, "{names}")).replace("{names}", listed)
