"""The texts of the playground in English and Chinese.

Labels are translated in the browser. Tables and messages are translated by the server.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import gradio as gr

from trivium.messages import Language

TEXTS_FILE = Path(__file__).with_name("texts.toml")


def load_texts(*files: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read files of texts. Returns two dicts of key -> text, for English and for Chinese."""
    texts: dict[str, list[str]] = {}
    for file in files:
        texts |= tomllib.loads(file.read_text(encoding="utf-8"))
    english, chinese = ({key: both[n] for key, both in texts.items()} for n in (0, 1))
    return english, chinese


def make_translations(languages: tuple[dict[str, str], dict[str, str]]) -> gr.I18n:
    """Return the texts that the browser translates. `languages` are the texts of `load_texts`."""
    english, chinese = map(_prefix_keys, languages)
    return gr.I18n(**{"en": english, **dict.fromkeys(("zh", "zh-CN", "zh-TW"), chinese)})


def _prefix_keys(texts: dict[str, str]) -> dict[str, str]:
    """Add the prefix "trivium." to the keys of texts.

    Gradio translates every string that equals a key. The prefix prevents a model name from being
    translated because it happens to equal a key.
    """
    return {f"trivium.{key}": value for key, value in texts.items()}


LANGUAGES = load_texts(TEXTS_FILE)
"""One dict of key -> text for each language."""
_EN, _ZH = LANGUAGES
TRANSLATIONS = make_translations(LANGUAGES)
"""The texts that the browser translates."""


def make_label(key: str) -> Any:
    """Return a label that is shown in the browser's language. `key` is a key in texts.toml."""
    return TRANSLATIONS(f"trivium.{key}")


def get_request_language(request: gr.Request) -> Language:
    """Return the preferred language of the browser that sent a request."""
    return "zh" if request.headers.get("accept-language", "").startswith("zh") else "en"


def translate(key: str, request: gr.Request, **values: object) -> str:
    """Return the text for a key in the browser's language, with its placeholders filled in."""
    return (_ZH if get_request_language(request) == "zh" else _EN)[key].format(**values)
