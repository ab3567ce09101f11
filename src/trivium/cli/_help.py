"""The help of commands in the reader's language, wrapped to the terminal's width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from trivium.messages import catalog, chinese_help, terminal_language, translated

_WIDE = "[\u2e80-\uff60]"
_OPENS, _ENDS = "[\uff08\u300a]", "[\uff0c\u3002\uff1a\uff1b\uff1f\uff01\uff09\u300b\u3001)\\]]"
# Lists of kinds (objectives, presets): the Chinese has {names} in their place.
_NAMES = re.compile(r"[a-z0-9][\w-]*(?:, (?!or )[a-z0-9][\w-]*){3,}")

# An argument in Typer's line of usage: {MODEL...}..., {data}, [text], [[FOLDER]].
_ARGUMENT = re.compile(r"(\{|\[+)([\w=-]+)(\.\.\.)?[}\]]+(\.\.\.)?")


def _usual(match: re.Match[str]) -> str:
    """An argument as manuals write it: MODEL..., DATA, [TEXT], [FOLDER]."""
    name = match[2].upper()
    return (name if match[1] == "{" else f"[{name}]") + (match[3] or match[4] or "")


class HelpFormatter(TyperCommand.context_class.formatter_class):
    """Click's, which counts characters and ends lines at spaces.

    While it wraps, a space after every wide character makes it two columns, where a line may end;
    before a punctuation mark it is one that ends no line.
    """

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """The line of a command's arguments."""
        super().write_usage(prog, _ARGUMENT.sub(_usual, args), prefix or translated("click.usage"))

    def write_heading(self, heading: str) -> None:
        """Such as Options."""
        self.write(f"{'':>{self.current_indent}}{_translate_words(f'{heading}:')}\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs. The lines of examples are not wrapped, so that users can copy them."""
        first, *others = text.split("\n\n")
        if first.strip() == "Examples:":
            others = [one if one[:1] == "`" else f"\b\n{one}" for one in others]
        super().write_text(_spread("\n\n".join([first, *others])))

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
    text = re.sub(f"({_WIDE}(?={_ENDS})|{_OPENS})", "\\1\xa0", _translate_words(text))
    return re.sub(f"({_WIDE})(?!\xa0)", r"\1 ", text)


def _translate_words(text: str) -> str:
    """Translate the words that click writes around the texts of commands."""
    for identifier, words in catalog("en").items():
        if identifier.startswith("click."):
            text = text.replace(words, translated(identifier))
    return text


def translate_help(command: Any, *names: str) -> Any:
    """Translate the help of a command, its parameters and the commands inside it, in place.

    Args:
        command: of click.
        names: those of the command, such as "tokenizer", "train"; none of the program itself.
    """
    for name, inner in getattr(command, "commands", {}).items():
        translate_help(inner, *names, name)
    command.context_class = HelpContext
    if terminal_language() == "en":
        return command
    own, *groups = [" ".join(names[:count]) for count in range(len(names), 0, -1)] or ["trivium"]
    _translate(command, "help", "about", own)
    _translate(command, "short_help", "summary", own)
    for one in command.params:
        _translate(one, "help", one.name, own, *groups, "options")
        _translate(one, "show_default", f"{one.name}_default", own, *groups, "options")
    return command


def _translate(owner: Any, attribute: str, name: str, *tables: str) -> None:
    """Replace an English text of help by the text of that name in the first table that has it."""
    text, known = getattr(owner, attribute, None), chinese_help()
    chinese = next((known[one][name] for one in tables if name in known.get(one, ())), None)
    if isinstance(text, str) and chinese is not None:
        names = _NAMES.search(text)
        setattr(owner, attribute, chinese.replace("{names}", names[0] if names else ""))
