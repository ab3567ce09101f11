"""The playground's texts: labels are translated in the browser, tables by the server."""

from __future__ import annotations

import tomllib
from pathlib import Path

import gradio as gr

_TEXTS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("texts.toml").read_text(encoding="utf-8")
)
_EN, _ZH = ({key: texts[n] for key, texts in _TEXTS.items()} for n in (0, 1))
LANGUAGES = (_EN, _ZH)
"""Key -> text, of every language."""

label = gr.I18n(**{"en": _EN, "zh": _ZH, "zh-CN": _ZH, "zh-TW": _ZH})
"""A text by its key, in the language of the browser."""


def text(key: str, request: gr.Request, **values: object) -> str:
    """A text in the language that the browser of a request prefers."""
    chinese = request.headers.get("accept-language", "").startswith("zh")
    return (_ZH if chinese else _EN)[key].format(**values)
