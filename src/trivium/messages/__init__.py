"""What the program says, in the reader's language.

Texts are written in English where they are used; `zh.toml` has the same in Chinese. Errors and
warnings stay English: they are what one searches for.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]

_FIELD = re.compile(r"\{(\w+)[^{}]*\}")
# Characters besides its values by which a template is recognized.
_LEAST_FIXED = 12


def terminal_language() -> Language:
    """That of TRIVIUM_LANGUAGE, which `trivium --language` sets, for children too, or the locale's.

    LANGUAGE goes before the locale unless that is C (as in GNU gettext).
    """
    variable = os.environ.get
    locale = variable("LC_ALL") or variable("LC_MESSAGES") or variable("LANG") or "C"
    if locale.split(".")[0] not in ("C", "POSIX"):
        locale = variable("LANGUAGE") or locale
    return "zh" if (variable("TRIVIUM_LANGUAGE") or locale).startswith("zh") else "en"


@functools.cache
def catalog(language: Language) -> Mapping[str, str]:
    """English -> a language; of English itself empty."""
    path = Path(__file__).with_name(f"{language}.toml")
    return {} if language == "en" else tomllib.loads(path.read_text(encoding="utf-8"))


def translated(english: str, /, **values: object) -> str:
    """A text in the reader's language, with the values in the places of their {names}."""
    text = catalog(terminal_language()).get(english, english)
    return text.format(**values) if values else text


def translated_whole(english: str, /) -> str:
    """A finished text in the reader's language, such as a warning in the files of a run.

    The catalog has it as it is, or the template that it was made of: then its values are found, and
    those that the catalog has are translated, too. Any other text stays English.
    """
    known = catalog(terminal_language())
    if english in known:
        return known[english]
    for pattern, names, text in _templates(terminal_language()):
        if match := pattern.fullmatch(english):
            values = {name: known.get(one, one) for name, one in zip(names, match.groups())}
            return text.format(**values)
    return english


@functools.cache
def _templates(language: Language) -> Sequence[tuple[re.Pattern[str], Sequence[str], str]]:
    """What texts of the catalog's templates look like, names of values, text in a language.

    Those with the most words of their own come first.
    """
    templates: list[tuple[int, tuple[re.Pattern[str], Sequence[str], str]]] = []
    for english, text in catalog(language).items():
        parts = _FIELD.split(english)
        fixed, names = parts[::2], parts[1::2]
        length = len("".join(fixed))
        if names and length >= _LEAST_FIXED:
            pattern = re.compile("(.+?)".join(map(re.escape, fixed)))
            templates.append((length, (pattern, names, _FIELD.sub(r"{\1}", text))))
    return [template for _, template in sorted(templates, key=lambda one: -one[0])]


def translated_paragraphs(english: str) -> str:
    """A text by its paragraphs; those that the catalog does not have, as examples, stay."""
    known = catalog(terminal_language())
    return "\n\n".join(known.get(" ".join(one.split()), one) for one in english.split("\n\n"))


def display_width(text: str) -> int:
    """Columns of a terminal that a text takes; characters of Chinese take two."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    narrow = sum(not unicodedata.combining(character) for character in text)
    return narrow + wide


def padded(text: str, width: int, *, right: bool = False) -> str:
    """A text with spaces after it, or before it, up to so many columns."""
    space = " " * (width - display_width(text))
    return space + text if right else text + space
