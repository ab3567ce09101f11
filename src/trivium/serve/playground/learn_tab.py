"""The playground tab with the pages of `trivium explain`, for an example or for the user's text."""

from __future__ import annotations

import inspect
from typing import Any

import gradio as gr

from trivium.errors import TriviumError
from trivium.explain import explain, get_topic_summary, list_topics, load_topic
from trivium.explain.page import render
from trivium.serve.models import ModelRegistry
from trivium.serve.playground import tabs
from trivium.serve.playground.texts import make_label, request_language

_MAX_CHARACTERS = 1000
_LINE_TYPES = (list[str], list[str] | None)


def build_learn_tab(registry: ModelRegistry, models: tabs.Models, opened: Any) -> None:
    """Build the tab with the topic pages. It has a menu of topics and a text field.

    The text field is visible only if the topic takes text input.

    Args:
        registry: the served models.
        models: the models of the tab.
        opened: the event that occurs when the tab is opened for the first time.
    """
    topic = gr.Dropdown(list_topics(), label=make_label("learn.topic"), elem_id="learn-topic")
    with gr.Row(visible=False) as of_text:
        words = tabs.make_text_box("learn", "text", key="learn.text", lines=2)
        run = tabs.make_run_button("learn")
    shown = gr.HTML(elem_id="learn-shown")

    def show_topic(name: str, words: str, request: gr.Request) -> str:
        """Return the page of a topic as HTML.

        `words` is the user's text. If it is blank, the page explains an example.
        """
        kind, text = _get_first_parameter_type(name), words.strip()
        try:
            if len(text) > _MAX_CHARACTERS:
                raise TriviumError(
                    f"the text has {len(text):,} characters, but at most {_MAX_CHARACTERS:,} are "
                    "allowed."
                )
            own = [text.splitlines() if kind in _LINE_TYPES else text] if text else []
            return explain(name, *own).html(request_language(request), whole=False)
        except Exception as error:
            raise tabs.make_error(error, request) from error

    def choose_topic(name: str, request: gr.Request) -> tuple[Any, str, str]:
        """Return the Gradio updates for a newly selected topic: input row, empty text, HTML page.

        The input row with the text field is visible only if the topic takes text input.
        """
        takes_text = _get_first_parameter_type(name) in (str, *_LINE_TYPES)
        return gr.Row(visible=takes_text), "", show_topic(name, "", request)

    def fill_menu(request: gr.Request) -> Any:
        """Return the menu of topics, with their summaries in the browser's language."""
        summaries = {
            name: render(get_topic_summary(name), request_language(request)) for name in topics
        }
        return gr.Dropdown([(f"{name}: {summaries[name]}", name) for name in topics])

    topics = list_topics()
    gr.on([opened], fill_menu, None, topic, **tabs.EVENT)
    gr.on([opened, topic.input], choose_topic, topic, [of_text, words, shown], **tabs.EVENT)
    gr.on([run.click, words.submit], show_topic, [topic, words], shown, **tabs.EVENT)


def _get_first_parameter_type(topic: str) -> Any:
    """Return the type of a topic's first parameter, or None if the topic has no parameters.

    The type determines whether the topic takes text input.
    """
    parameters = inspect.signature(load_topic(topic).explain, eval_str=True).parameters.values()
    return next((one.annotation for one in parameters), None)
