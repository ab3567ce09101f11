"""The page: a heading, the tabs, and how it looks."""

from __future__ import annotations

from html import escape
from pathlib import Path

import gradio as gr
from gradio.themes import Base

from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.answering import answering
from trivium.serve.playground.tabs.attention import attention
from trivium.serve.playground.tabs.classification import classification
from trivium.serve.playground.tabs.continuation import continuation
from trivium.serve.playground.tabs.filling import filling
from trivium.serve.playground.tabs.runs import runs
from trivium.serve.playground.tabs.tagging import tagging
from trivium.serve.playground.tabs.tokenizers import tokenizers
from trivium.serve.playground.tabs.translation import translation
from trivium.serve.playground.words import Language, Words

STYLE = Path(__file__).with_name("style.css")
"""How the page looks."""

PATHS: dict[Language, str] = {"zh": "/zh", "en": "/"}
"""Where the page is in each language; / last, because it takes what no other path takes."""

# Events that run side by side, and those that may wait: more are told to come back.
_AT_ONCE, _WAITING = 8, 64
# Seen from the page in one language, the way to the other.
_OTHER = {"en": "zh/", "zh": "../"}


def page(models: Shown, words: Words, *, runs_folder: Path | None) -> gr.Blocks:
    """The playground in one language."""
    with gr.Blocks(title=words("title"), analytics_enabled=False, fill_width=False) as blocks:
        gr.HTML(_heading(models, words), elem_id="tv-heading", js_on_load=None)
        with gr.Tabs(elem_id="tv-tabs", overflow_behavior="wrap") as tabs:
            continuation(models, words)
            filling(models, words)
            translation(models, words)
            classification(models, words)
            tagging(models, words)
            answering(models, words)
            tokenizers(models, words)
            attention(models, words)
            _, timer = runs(runs_folder, words)
        if timer is not None:
            tabs.select(
                _only_while_seen, None, timer, api_visibility="private", show_progress="hidden"
            )
    blocks.queue(default_concurrency_limit=_AT_ONCE, max_size=_WAITING, api_open=False)
    return blocks


def theme() -> Base:
    """Quiet colours and the reader's own fonts: nothing to fetch."""
    return Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="md",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )


def head(words: Words) -> str:
    """What stands in the head of the page: its language, and the way to that of the reader.

    Whoever comes to / with a Chinese browser is sent on, unless they chose English here before.
    """
    return f"""<link rel="icon" href="data:,">
<script>
document.documentElement.lang = "{words.language}";
(() => {{
  const key = "trivium-language";
  let chosen = null;
  try {{ chosen = localStorage.getItem(key); }} catch (error) {{}}
  if ("{words.language}" === "en" && !chosen && navigator.language.startsWith("zh"))
    location.replace("{_OTHER["en"]}");
  document.addEventListener("click", (event) => {{
    const link = event.target.closest("a[data-language]");
    if (link) try {{ localStorage.setItem(key, link.dataset.language); }} catch (error) {{}}
  }});
}})();
</script>"""


def _heading(models: Shown, words: Words) -> str:
    count = len(models.cards)
    told = words("models.one") if count == 1 else words("models.many", count=count)
    other = "zh" if words.language == "en" else "en"
    broken = "".join(
        f'<p class="tv-broken">{escape(words("models.broken", name=name, reason=reason))}</p>'
        for name, reason in models.broken.items()
    )
    return (
        f'<header class="tv-heading"><h1>Trivium</h1><span class="tv-note">{told}</span>'
        f'<a href="{_OTHER[words.language]}" target="_self" data-language="{other}">'
        f"{words('other-language')}</a></header>{broken}"
    )


def _only_while_seen(event: gr.SelectData) -> gr.Timer:
    """The timer of the runs ticks only while they are looked at."""
    return gr.Timer(active=event.value in {Words("en")("runs.tab"), Words("zh")("runs.tab")})
