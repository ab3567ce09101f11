"""The playground's texts: labels are translated in the browser, tables by the server."""

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
"""Key -> text, of every language."""


def _keyed(texts: dict[str, str]) -> dict[str, str]:
    """With keys that no name of a model is: Gradio translates whatever equals one."""
    return {f"trivium.{key}": value for key, value in texts.items()}


TRANSLATIONS = gr.I18n(
    **{"en": _keyed(_EN), **dict.fromkeys(("zh", "zh-CN", "zh-TW"), _keyed(_ZH))}
)
"""What the browser translates."""


def label(key: str) -> Any:
    """A text by its key, in the language of the browser."""
    return TRANSLATIONS(f"trivium.{key}")


def language(request: gr.Request) -> Language:
    """The one that the browser of a request prefers."""
    return "zh" if request.headers.get("accept-language", "").startswith("zh") else "en"


def text(key: str, request: gr.Request, **values: object) -> str:
    """A text in the language that the browser of a request prefers."""
    return (_ZH if language(request) == "zh" else _EN)[key].format(**values)
