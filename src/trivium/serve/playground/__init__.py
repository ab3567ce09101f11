"""The playground: a web page to try the served models.

It needs the optional dependencies `playground`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio.themes import Base
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.models import LogitsModel, num_parameters
from trivium.serve.api_error import ApiError, handle_error
from trivium.serve.endpoints import ENDPOINTS
from trivium.serve.models import ModelRegistry, ServedModel
from trivium.serve.playground.attention_tab import build_attention_tab
from trivium.serve.playground.chat_tab import build_chat_tab
from trivium.serve.playground.learn_tab import build_learn_tab
from trivium.serve.playground.runs import build_runs_tab
from trivium.serve.playground.tabs import EVENT, TABS, BuildTab
from trivium.serve.playground.texts import LANGUAGES, TRANSLATIONS, make_label, translate
from trivium.serve.replies import run_until

__all__ = ["GradioPage", "mount_page", "mount_playground"]

# The paths of Gradio's API that the page needs. Uploads, downloads and the proxy are refused.
_API = "/gradio_api/"
_OPEN = (
    "queue/",
    "run/predict",
    "heartbeat/",
    "cancel",
    "reset",
    "startup-events",
    "theme.css",
    "info",
)
# Long labels wrap. Highlighted text flows like other text. Headers of tables use a narrower font.
# Points at the edge of a plot are not clipped, and a line with a single point is shown as a dot.
# The name of the selected tab has enough contrast.
_STYLE = """
#tabs button.selected { color: #1d4ed8; }
.dark #tabs button.selected { color: #93c5fd; }
#classify-shown h2 { overflow-wrap: anywhere; font-size: var(--text-xl); text-align: center; }
:is(#tag-shown, #answer-shown) .textfield { display: block; word-break: normal; }
:is(#tag-shown, #answer-shown) .token-container { display: inline; }
table { --font-mono: var(--font); }
.role-mark { clip-path: none !important; }
.mark-line path { stroke-linecap: round; }
.mark-line path[d$="Z"] { stroke-width: 8px; }
"""
_THEME = Base(font=("system-ui", "sans-serif"), font_mono=("ui-monospace", "monospace")).set(
    # White text on the default blue has a contrast of 3.7, and text in the default gray of 1.9.
    # Text needs at least 4.5.
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
    body_text_color_subdued="*neutral_600",
    input_placeholder_color="*neutral_600",
    input_placeholder_color_dark="*neutral_400",
)
# In Gradio's messages, a button contains the button that closes the message, which screen readers
# cannot reach. The outer button is removed: it only folds the message. Gradio's field for uploads
# has a name in English. Without this name, screen readers read the text of the field.
_HEAD = """
<link rel="icon" href="data:,">
<script>
new MutationObserver(() => {
  for (const header of document.querySelectorAll(".toast-header[role=button]")) {
    header.removeAttribute("role");
    header.removeAttribute("tabindex");
  }
  for (const field of document.querySelectorAll(".upload-container[aria-label]:not(.icon-mode)")) {
    field.removeAttribute("aria-label");
  }
}).observe(document, { childList: true, subtree: true });
</script>
"""
_MAX_RUNNING, _MAX_WAITING = 8, 64
_MAX_DESCRIBED = 4  # Up to this number of models, the list of models is open at first.


def mount_playground(
    app: FastAPI, registry: ModelRegistry, *, runs: Path | None, root_path: str
) -> None:
    """Mount the playground at /. Its route comes after all other routes of the app.

    Args:
        app: the app on which the playground is mounted.
        registry: the served models.
        runs: a folder of training runs, for the tab of loss curves. None omits this tab.
        root_path: the path under which a proxy serves the app.
    """

    mount_page(
        app,
        lambda: build_page(registry, runs),
        stopping=registry.stopping,
        translations=TRANSLATIONS,
        root_path=root_path,
    )


def mount_page(
    app: FastAPI,
    build: Callable[[], gr.Blocks],
    *,
    stopping: asyncio.Event,
    translations: gr.I18n,
    root_path: str,
    also_open: Sequence[str] = (),
    style: str = "",
    max_file_size: int | None = None,
) -> None:
    """Mount a Gradio page at / with the theme of the playground and without Gradio's extras.

    Args:
        app: the app on which the page is mounted.
        build: a function that builds the page.
        stopping: an event that is set when the server stops. It ends responses without an end.
        translations: the texts of the page.
        root_path: the path under which the app is reached.
        also_open: paths of Gradio's API that the page needs in addition to those of any page.
        style: further CSS.
        max_file_size: the size limit of an uploaded file in bytes.
    """
    guard = Middleware(GradioGuard, stopping=stopping, open_paths=(*_OPEN, *also_open))

    async def mount() -> None:  # Without a running event loop, Gradio leaks one for each lock.
        gr.mount_gradio_app(
            app,
            build(),
            "/",
            root_path=root_path,
            footer_links=[],
            run_history=False,
            app_kwargs={"middleware": [guard], "exception_handlers": {404: handle_error}},
            show_error=False,
            ssr_mode=False,
            enable_monitoring=False,
            pwa=False,
            mcp_server=False,
            max_file_size=max_file_size,
            i18n=translations,
            theme=_THEME,
            css=_STYLE + style,
            head=_HEAD,
        )

    asyncio.run(mount())


def build_page(registry: ModelRegistry, runs: Path | None) -> gr.Blocks:
    """Build the playground page. It has a tab for every task that a served model can perform.

    Other tabs show attention weights, the topics of `trivium explain` and the loss curves of runs.
    When a tab is opened for the first time, it runs an example with the first model of the tab.
    """
    outlines = {
        model.name: lm
        for model in registry
        if (lm := model.load_outline()) is not None and lm.tokenizer
    }
    tabs: list[tuple[str, BuildTab, list[str]]] = [
        (name, build, [each for each, lm in outlines.items() if ENDPOINTS[path].accepts(lm)])
        for path, (name, build) in {
            "/v1/chat/completions": ("chat", build_chat_tab),
            **TABS,
        }.items()
    ]
    for name, _, able in tabs:
        if name == "translate":  # Pretrained models without fine-tuning cannot translate: last.
            able.sort(key=lambda each: outlines[each].settings.task is None)
    with_attention = [name for name, lm in outlines.items() if lm.spec.attention_only]
    tabs.append(("attention", build_attention_tab, with_attention))
    tabs.append(("learn", build_learn_tab, [*outlines]))
    first = True
    with GradioPage(title="Trivium", analytics_enabled=False) as page:
        gr.Markdown("# Trivium")
        with gr.Accordion(make_label("models"), open=len(registry.names) <= _MAX_DESCRIBED):
            described = gr.Markdown()

        def describe(request: gr.Request) -> str:
            """Return a Markdown list of all models with their descriptions."""
            return "\n".join(
                f"- `{model.name}`: {_describe_model(model, request)}" for model in registry
            )

        page.load(describe, None, described, **EVENT)
        with gr.Tabs(elem_id="tabs"):
            for name, build_tab, able in tabs:
                if able:
                    with gr.Tab(make_label(name), id=name) as tab:
                        opened = gr.State(False)
                        build_tab(registry, {each: outlines[each] for each in able}, opened.change)
                    # The first tab is open when the page loads. Later events have no effect.
                    event = page.load if first else tab.select
                    event(lambda: True, None, opened, api_visibility="private")
                    first = False
            if runs is not None:
                with gr.Tab(make_label("runs"), id="runs"):
                    build_runs_tab(runs)
    page.queue(default_concurrency_limit=_MAX_RUNNING, max_size=_MAX_WAITING, api_open=False)
    return page


def _describe_model(model: ServedModel, request: gr.Request) -> str:
    """Return a description of a model: its architecture, size, task and tokenizers.

    The description is in the language of the browser that sent the request.
    """
    lm = model.load_outline()
    if lm is None:
        return translate("models.damaged", request)
    if isinstance(lm.module, LogitsModel):
        count = sum(weight.numel() for weight in lm.module.parameters())
    else:  # Packed weights are not parameters of the module.
        count = num_parameters(lm.spec)
    facts = [
        translate(f"models.{lm.spec.family}", request),
        translate("models.parameters", request, count=f"{count:,}"),
    ]
    if lm.settings.task is not None:
        key = f"task.{lm.settings.task}"
        task = translate(key, request) if key in LANGUAGES[0] else lm.settings.task
        facts.append(translate("models.task", request, task=task))
    if (targets := lm.tokenizer) is not None:
        size = f"{targets.vocab_size:,}"
        facts.append(translate("models.tokenizer", request, kind=targets.kind, count=size))
        if (sources := lm.source_tokenizer) is not lm.text_tokenizer:
            facts.append(translate("models.sources", request, count=f"{sources.vocab_size:,}"))
    return translate("models.comma", request).join(facts)


class GradioPage(gr.Blocks):
    """A Gradio page, adapted to run behind a proxy."""

    def get_config_file(self) -> Any:
        """Override Gradio's method: return the page's configuration with the flag `is_colab` set.

        With this flag, the page sends its requests to the address shown in the browser. Without it,
        requests would go to the host named in the proxy's Host header.
        """
        return super().get_config_file() | {"is_colab": True}


class GradioGuard:
    """ASGI middleware that rejects requests to Gradio API paths that the page does not need.

    When the server stops, the middleware also ends responses that would never end, such as event
    streams.

    Args:
        app: the app of Gradio.
        stopping: an event that is set when the server stops.
        open_paths: the beginnings of the paths that the page needs.
    """

    def __init__(
        self, app: ASGIApp, stopping: asyncio.Event, open_paths: tuple[str, ...] = _OPEN
    ) -> None:
        self._app, self._stopping, self._open = app, stopping, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to Gradio, or reject it with status 404 if the page does not need it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _, inside, path = scope["path"].partition(_API)
        if inside and not path.startswith(self._open):
            await ApiError(404, "closed").to_response()(scope, receive, send)
            return

        with contextlib.suppress(ApiError):  # Some responses never end by themselves.
            await run_until(self._app(scope, receive, send), self._stopping.wait())
