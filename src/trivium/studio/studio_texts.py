"""The texts of the studio in English and Chinese, together with those of the playground."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from trivium.serve.playground.texts import (
    TEXTS_FILE,
    get_request_language,
    load_texts,
    make_translations,
)

LANGUAGES = load_texts(TEXTS_FILE, Path(__file__).with_name("texts.toml"))
"""One dict of key -> text for each language."""

TRANSLATIONS = make_translations(LANGUAGES)
"""The texts that the browser translates."""


def translate(key: str, request: gr.Request, **values: object) -> str:
    """Return the text `studio.KEY` in the browser's language, with its placeholders filled in."""
    return LANGUAGES[get_request_language(request) == "zh"][f"studio.{key}"].format(**values)
