"""The messages of the program in English and Chinese.

Every message has an identifier, such as `run.forecast`. `texts.toml` contains its English text and
its Chinese text, with the same {fields}. `translated("run.forecast", rate=...)` returns the message
in the user's language. The English texts of `--help` are in the modules of the commands, and their
Chinese translations are in `help_zh.toml`. In the same way, `recipe_zh.toml` contains the Chinese
translations of the descriptions of recipe keys and kinds.

Messages stored in the files of a run, such as warnings in `metrics.jsonl`, are always English. They
are created by `english`, and `translate_english` translates them for display. Errors and Python
warnings on the terminal remain English, so that users can search for them on the web.
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

# Tables of texts that are created by `english`.
_IN_FILES = ("finding.", "advice.", "note.", "reason.", "warning.")
_FIELD = re.compile(r"\{(\w+)[^{}]*\}")


def detect_language() -> Language:
    """Return the language of messages: TRIVIUM_LANGUAGE if set, otherwise the locale's language.

    `trivium --language` sets the environment variable TRIVIUM_LANGUAGE, which child processes
    inherit. As in GNU gettext, the variable LANGUAGE takes precedence over the locale, unless the
    locale is C.
    """
    variable = os.environ.get
    locale = variable("LC_ALL") or variable("LC_MESSAGES") or variable("LANG") or "C"
    if locale.split(".")[0] not in ("C", "POSIX"):
        locale = variable("LANGUAGE") or locale
    return "zh" if (variable("TRIVIUM_LANGUAGE") or locale).startswith("zh") else "en"


@functools.cache
def load_catalog(language: Language) -> Mapping[str, str]:
    """Load all messages of a language.

    Returns a dict of identifier -> text with unfilled {fields}.
    """
    place, tables = ("en", "zh").index(language), _read_toml("texts.toml").items()
    return {
        f"{table}.{name}": text[place] for table, texts in tables for name, text in texts.items()
    }


@functools.cache
def load_chinese_help() -> Mapping[str, Mapping[str, str]]:
    """Load the Chinese texts of `--help`. Returns a dict of command -> parameter -> text."""
    return _read_toml("help_zh.toml")


@functools.cache
def load_chinese_recipe() -> Mapping[str, Mapping[str, str]]:
    """Load the Chinese texts about the recipe. Returns a dict of table -> English text -> text.

    The tables are "keys" (descriptions of keys) and "kinds" (docstrings of tables and kinds).
    """
    return _read_toml("recipe_zh.toml")


def _read_toml(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Parse a TOML file in the folder of this module. Returns its tables."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def translated(identifier: str, /, **values: object) -> str:
    """Return the message `identifier` in the user's language, with its {fields} filled in."""
    return load_catalog(detect_language())[identifier].format(**values)


def english(identifier: str, /, **values: object) -> str:
    """Return the message `identifier` in English, with its {fields} filled in.

    The files of a run contain English messages; `translate_english` translates them for display.
    """
    return load_catalog("en")[identifier].format(**values)


def translate_english(text: str, /, language: Language | None = None) -> str:
    """Translate a message created by `english` into a language, by default the user's language.

    Any other text is returned unchanged.
    """
    for identifier, pattern in _compile_patterns().items():
        if match := pattern.fullmatch(text):
            translation = load_catalog(language or detect_language())[identifier]
            return _FIELD.sub(r"{\1}", translation).format(**match.groupdict())
    return text


@functools.cache
def _compile_patterns() -> Mapping[str, re.Pattern[str]]:
    """Compile a regular expression for each message that can occur in the files of a run.

    A pattern matches the English message with any field values. Returns a dict of identifier ->
    pattern.
    """
    patterns = {}
    for identifier, text in load_catalog("en").items():
        if identifier.startswith(_IN_FILES):
            parts = enumerate(_FIELD.split(text))  # literal texts and names of fields alternate
            groups = (f"(?P<{part}>.+?)" if index % 2 else re.escape(part) for index, part in parts)
            patterns[identifier] = re.compile("".join(groups))
    return patterns


def display_width(text: str) -> int:
    """Return the width of a text in terminal columns. Chinese characters are two columns wide."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    narrow = sum(not unicodedata.combining(character) for character in text)
    return narrow + wide


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Pad a text with spaces to `width` terminal columns.

    With `right`, the text is right-aligned.
    """
    space = " " * (width - display_width(text))
    return space + text if right else text + space
