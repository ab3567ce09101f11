"""What all tabs have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from trivium.serve.playground.words import Words

# Options of every event: no part of an interface for programs, the server has one.
EVENT: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}


def choose_model(names: Sequence[str], words: Words, tab: str) -> gr.Dropdown:
    """The models to choose from; the first one is chosen."""
    return gr.Dropdown(
        list(names),
        value=names[0],
        label=words("model"),
        elem_id=f"{tab}-model",
        filterable=len(names) > 7,
    )


def nothing_to_show(words: Words, tab: str) -> None:
    """What to do where no model can do what the tab is for."""
    gr.Markdown(words(f"{tab}.none"), elem_classes="tv-none")


def shown(tab: str, value: str = "") -> gr.HTML:
    """Where the answer of a tab appears."""
    return gr.HTML(value, elem_id=f"{tab}-shown", elem_classes="tv-shown", js_on_load=None)


def run_button(words: Words, tab: str) -> gr.Button:
    """The button that asks the model."""
    return gr.Button(words(f"{tab}.run"), variant="primary", min_width=90, elem_id=f"{tab}-run")
