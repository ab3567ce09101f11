"""The playground's chat tab: a conversation with a model that has a chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import gradio as gr

from trivium.serve.models import ModelRegistry
from trivium.serve.playground import tabs
from trivium.serve.playground.examples import Examples
from trivium.serve.playground.texts import make_label, translate
from trivium.serve.replies import Json

_MAX_TOKENS = 512


def build_chat_tab(registry: ModelRegistry, models: tabs.Models, opened: Any) -> None:
    """Build the chat tab. The model reads all earlier messages before it answers.

    Args:
        registry: the served models.
        models: the models of the tab.
        opened: the event that occurs when the tab is opened for the first time.
    """
    with gr.Row():
        with gr.Column(scale=2):
            model = tabs.make_model_menu(models, "chat")
            example = Examples(registry, models)("chat")
            message = tabs.make_text_box("chat", "text", example, "chat.message", lines=1)
            with gr.Row():
                run, clear = tabs.make_run_button("chat"), gr.Button(make_label("chat.clear"))
        with gr.Column(scale=3):
            shown = gr.Chatbot(
                label=make_label("chat"), elem_id="chat-shown", height=500, buttons=["copy"]
            )

    async def chat(
        history: list[Json], name: str, message: str, request: gr.Request
    ) -> AsyncGenerator[tuple[list[Json], str]]:
        """Send a user message. Yields pairs: the conversation with the answer so far, and "".

        The empty string clears the input field.
        """
        if not message.strip():
            raise tabs.make_empty_error(request)
        turns = [
            {"role": turn["role"], "content": _get_text(turn["content"])}
            for turn in history
            if not _is_reasoning(turn)
        ]
        turns.append({"role": "user", "content": message})
        most = min(_MAX_TOKENS, registry.limits.max_tokens)
        path, answer, reasoning = "/v1/chat/completions", "", ""
        title = translate("chat.reasoning", request)
        async with tabs.stream_api(
            registry, path, request, model=name, messages=turns, max_tokens=most
        ) as events:
            async for event in events:
                delta = event["choices"][0]["delta"]
                answer += delta.get("content") or ""
                reasoning += delta.get("reasoning_content") or ""
                said = {"role": "assistant", "content": answer}
                thought = {"role": "assistant", "content": reasoning, "metadata": {"title": title}}
                yield [*turns, *([thought] if reasoning else []), said], ""

    events = [opened, run.click, message.submit]
    chatting = gr.on(events, chat, [shown, model, message], [shown, message], **tabs.EVENT)
    clear.click(list, None, shown, cancels=[chatting], api_visibility="private")


def _is_reasoning(turn: Json) -> bool:
    """Return whether a message shown on the page is reasoning. Only such messages have a title."""
    return bool((turn.get("metadata") or {}).get("title"))


def _get_text(content: str | list[Json]) -> str:
    """Return the text of a chat message. In Gradio, the content is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
