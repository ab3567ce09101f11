"""What the program says, in the reader's language.

Every text has an identifier, such as `run.forecast`, under which `texts.toml` has its English and
its Chinese, with the same {fields}. `translated("run.forecast", rate=...)` returns it in the
reader's language. The English of `--help` is in the commands, its Chinese in `help_zh.toml`.

Texts that the files of a run keep, such as warnings in `metrics.jsonl`, are made by `english`, and
`translated_english` translates them where they are shown. Errors and warnings on the terminal stay
English, because that is what one searches for.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]

# Tables of texts that are made by `english`.
_IN_FILES = ("finding.", "advice.", "note.", "reason.", "warning.")
_FIELD = re.compile(r"\{(\w+)[^{}]*\}")


def terminal_language() -> Language:
    """Return the language of TRIVIUM_LANGUAGE, else that of the locale.

    `trivium --language` sets TRIVIUM_LANGUAGE, for child processes too. As in GNU gettext, LANGUAGE
    takes precedence over the locale, unless the locale is C.
    """
    variable = os.environ.get
    locale = variable("LC_ALL") or variable("LC_MESSAGES") or variable("LANG") or "C"
    if locale.split(".")[0] not in ("C", "POSIX"):
        locale = variable("LANGUAGE") or locale
    return "zh" if (variable("TRIVIUM_LANGUAGE") or locale).startswith("zh") else "en"


@functools.cache
def catalog(language: Language) -> Mapping[str, str]:
    """Return the texts of a language by identifier."""
    place, tables = ("en", "zh").index(language), _read("texts.toml").items()
    return {f"{table}.{name}": one[place] for table, texts in tables for name, one in texts.items()}


@functools.cache
def chinese_help() -> Mapping[str, Mapping[str, str]]:
    """Return the Chinese of `--help`: a table for each command, with its texts by name."""
    return _read("help_zh.toml")


def _read(name: str) -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def translated(identifier: str, /, **values: object) -> str:
    """Return a text in the reader's language, with the values in the places of its {fields}."""
    return catalog(terminal_language())[identifier].format(**values)


def english(identifier: str, /, **values: object) -> str:
    """Return a text in English, for a file; see `translated_english`."""
    return catalog("en")[identifier].format(**values)


def translated_english(text: str, /) -> str:
    """Return a text that `english` made in the reader's language; any other text stays as it is."""
    for identifier, pattern in _patterns().items():
        if match := pattern.fullmatch(text):
            translation = catalog(terminal_language())[identifier]
            return _FIELD.sub(r"{\1}", translation).format(**match.groupdict())
    return text


@functools.cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    """Return patterns that match the texts of `english` with any values, by identifier."""
    patterns = {}
    for identifier, text in catalog("en").items():
        if identifier.startswith(_IN_FILES):
            parts = enumerate(_FIELD.split(text))  # words and the names of fields alternate
            groups = (f"(?P<{one}>.+?)" if index % 2 else re.escape(one) for index, one in parts)
            patterns[identifier] = re.compile("".join(groups))
    return patterns


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes; a Chinese character takes two."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    narrow = sum(not unicodedata.combining(character) for character in text)
    return narrow + wide


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text with spaces after it, or before it, so that it takes `width` columns."""
    space = " " * (width - display_width(text))
    return space + text if right else text + space
