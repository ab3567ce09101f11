"""What the playground says, in the languages it speaks."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
"""The languages, in the order of the texts in `words.toml`."""

_FILE = Path(__file__).with_name("words.toml")


class Words:
    """The texts of one language: `words("tag.run")`, `words("fill.mask", number=1)`."""

    def __init__(self, language: Language) -> None:
        self.language: Language = language
        place = LANGUAGES.index(language)
        self._texts = {key: texts[place] for key, texts in _read().items()}

    def __call__(self, key: str, /, **values: object) -> str:
        """A text, with what stands in braces filled in."""
        return self._texts[key].format(**values)


@functools.cache
def _read() -> dict[str, list[str]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
