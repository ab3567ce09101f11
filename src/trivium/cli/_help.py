"""Formatting and translation of `--help`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from trivium.messages import detect_language, load_catalog, load_chinese_help, translated

_WIDE = "[\u2e80-\uff60]"
_OPENS, _ENDS = "[\uff08\u300a]", "[\uff0c\u3002\uff1a\uff1b\uff1f\uff01\uff09\u300b\u3001)\\]]"
# A list of names (objectives, kinds of tokenizer). The Chinese text contains {names} instead.
_NAMES = re.compile(r"[a-z0-9][\w-]*(?:, (?!or )[a-z0-9][\w-]*){3,}")

# An argument in a usage line of Typer: {MODEL...}..., {data}, [text], [[FOLDER]].
_ARGUMENT = re.compile(r"(\{|\[+)([\w=-]+)(\.\.\.)?[}\]]+(\.\.\.)?")


def _format_usage_argument(match: re.Match[str]) -> str:
    """Convert an argument in a usage line to manual-page style, such as MODEL... or [TEXT]."""
    name = match[2].upper()
    return (name if match[1] == "{" else f"[{name}]") + (match[3] or match[4] or "")


class HelpFormatter(TyperCommand.context_class.formatter_class):
    """The help formatter of click, extended to wrap Chinese text.

    Click counts characters and breaks lines only at spaces, but a Chinese character is two columns
    wide and lines may break after it. Therefore a space is added after every wide character before
    wrapping. Before a punctuation mark, this space is non-breaking. `getvalue` removes the added
    spaces.
    """

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage line of a command, with its arguments in the style of manual pages."""
        super().write_usage(
            prog, _ARGUMENT.sub(_format_usage_argument, args), prefix or translated("click.usage")
        )

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section, such as "Options", in the language of the terminal."""
        self.write(f"{'':>{self.current_indent}}{_translate_and_space(f'{heading}:')}\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs of text. Examples are not wrapped, so that users can copy them."""
        first, *others = text.split("\n\n")
        if first.strip() == "Examples:":
            others = [one if one[:1] == "`" else f"\b\n{one}" for one in others]
        super().write_text(_translate_and_space("\n\n".join([first, *others])))

    def write_dl(self, rows: Sequence[tuple[str, str]], *args: Any, **options: Any) -> None:
        """Write a definition list, such as the options of a command and their help texts."""
        super().write_dl(
            [(name, _translate_and_space(text)) for name, text in rows], *args, **options
        )

    def getvalue(self) -> str:
        """Return the formatted help, without the spaces that were added before wrapping."""
        return re.sub(f"({_WIDE})[ \xa0]", r"\1", super().getvalue())


class HelpContext(TyperCommand.context_class):
    """A click context that formats help with `HelpFormatter`."""

    formatter_class = HelpFormatter


def _translate_and_space(text: str) -> str:
    """Translate click's own texts, then add a space after every wide (Chinese) character."""
    text = re.sub(f"({_WIDE}(?={_ENDS})|{_OPENS})", "\\1\xa0", _translate_click_texts(text))
    return re.sub(f"({_WIDE})(?!\xa0)", r"\1 ", text)


def _translate_click_texts(text: str) -> str:
    """Translate the texts that click itself adds to the help, such as "Options:"."""
    for identifier, words in load_catalog("en").items():
        if identifier.startswith("click."):
            text = text.replace(words, translated(identifier))
    return text


def translate_help(command: Any, *names: str) -> Any:
    """Translate the help of a command, its parameters and its subcommands in place.

    Args:
        command: a click command.
        names: the words of the command name, such as "tokenizer", "train". Empty for the program
            itself.

    Returns:
        The same command.
    """
    for name, inner in getattr(command, "commands", {}).items():
        translate_help(inner, *names, name)
    command.context_class = HelpContext
    if detect_language() == "en":
        return command
    own, *groups = [" ".join(names[:count]) for count in range(len(names), 0, -1)] or ["trivium"]
    _translate_attribute(command, "help", "about", own)
    _translate_attribute(command, "short_help", "summary", own)
    for param in command.params:
        _translate_attribute(param, "help", param.name, own, *groups, "options")
        _translate_attribute(
            param, "show_default", f"{param.name}_default", own, *groups, "options"
        )
    return command


def _translate_attribute(owner: Any, attribute: str, name: str, *tables: str) -> None:
    """Replace the English help text in `owner.attribute` with its Chinese translation.

    Args:
        owner: the object that has the help text.
        attribute: the name of the attribute.
        name: the key of the translation.
        tables: tables of `help_zh.toml`, searched in order. If no table contains the key, the text
            remains English.
    """
    text, known = getattr(owner, attribute, None), load_chinese_help()
    chinese = next((known[table][name] for table in tables if name in known.get(table, ())), None)
    if isinstance(text, str) and chinese is not None:
        names = _NAMES.search(text)
        setattr(owner, attribute, chinese.replace("{names}", names[0] if names else ""))
