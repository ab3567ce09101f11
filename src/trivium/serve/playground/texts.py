"""The texts of the playground in English and Chinese.

Labels are translated in the browser. Tables and messages are translated by the server.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import gradio as gr

from trivium.messages import Language

_TEXTS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("texts.toml").read_text(encoding="utf-8")
)
_EN, _ZH = ({key: texts[n] for key, texts in _TEXTS.items()} for n in (0, 1))
LANGUAGES = (_EN, _ZH)
"""One dict of key -> text for each language."""


def _prefix_keys(texts: dict[str, str]) -> dict[str, str]:
    """Add the prefix "trivium." to the keys of texts.

    Gradio translates every string that equals a key. The prefix prevents a model name from being
    translated because it happens to equal a key.
    """
    return {f"trivium.{key}": value for key, value in texts.items()}


TRANSLATIONS = gr.I18n(
    **{"en": _prefix_keys(_EN), **dict.fromkeys(("zh", "zh-CN", "zh-TW"), _prefix_keys(_ZH))}
)
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
