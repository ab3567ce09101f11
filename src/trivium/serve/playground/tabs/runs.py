"""The loss curves of runs, of those that still train too."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from trivium.errors import CheckpointError
from trivium.report.charts import LineChart, Series, short
from trivium.report.run_files import METRICS, RunFiles, read_run
from trivium.serve.playground.asking import plainly
from trivium.serve.playground.marks import note, table
from trivium.serve.playground.tabs.frame import EVENT, nothing_to_show, shown
from trivium.serve.playground.words import Words

_AXES, _COLORS, _AT_FIRST = ("step", "tokens", "seconds"), 8, 3
# Seconds between two looks, and after which a run whose file stands still is no longer live.
_EVERY, _LIVE = 2.0, 60.0

Signature = tuple[Any, ...]


def runs(folder: Path | None, words: Words) -> tuple[gr.Tab, gr.Timer | None]:
    """Add the tab; its timer is for the page to start when the tab is chosen."""
    with gr.Tab(words("runs.tab"), id="runs") as tab:
        if folder is None:
            nothing_to_show(words, "runs")
            return tab, None
        with gr.Row(elem_classes="tv-sides"):
            chosen = gr.Dropdown(
                [],
                multiselect=True,
                label=words("runs.runs"),
                scale=3,
                min_width=300,
                elem_id="runs-runs",
            )
            over = gr.Radio(
                [(words(f"runs.{axis}"), axis) for axis in _AXES],
                value=_AXES[0],
                label=words("runs.over"),
                scale=2,
                min_width=280,
                elem_id="runs-over",
            )
        picture = shown("runs")
        timer = gr.Timer(_EVERY, active=False)
        drawn = gr.State(())

        def redraw(names: Sequence[str], over: str, before: Signature) -> tuple[Any, Any, Any]:
            there = run_names(folder)
            # The first look chooses the newest runs; afterwards the reader does.
            names = [name for name in names if name in there] if before else there[:_AT_FIRST]
            now = (tuple(there), _signature(folder, names), over)
            if now == before:
                return gr.skip(), gr.skip(), gr.skip()
            picture = _picture(folder, names, over, words)
            # A menu that is open must not be drawn anew without need.
            menu = gr.skip() if before and before[0] == now[0] else gr.Dropdown(there, value=names)
            return menu, picture, now

        quiet = {**EVENT, "show_progress": "hidden"}
        gr.on(
            [tab.select, timer.tick, chosen.input, over.input],
            plainly(redraw, words),
            [chosen, over, drawn],
            [chosen, picture, drawn],
            **quiet,
        )
    return tab, timer


def run_names(folder: Path) -> list[str]:
    """The runs in a folder, the one that was written last first; the folder itself may be one."""
    found = [path.parent for path in (*folder.glob(METRICS), *folder.glob(f"*/{METRICS}"))]
    newest = sorted(found, key=lambda run: -(run / METRICS).stat().st_mtime)
    return [run.relative_to(folder).as_posix() for run in newest]


def _signature(folder: Path, names: Sequence[str]) -> Signature:
    """What changes when there is something new to draw, or a run has stopped."""
    found = []
    for name in names:
        path = folder / name / METRICS
        if path.is_file():
            there = path.stat()
            found.append((name, there.st_size, there.st_mtime_ns, _is_live(path)))
    return tuple(found)


def _is_live(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < _LIVE


def _picture(folder: Path, names: Sequence[str], over: str, words: Words) -> str:
    if not names:
        there = run_names(folder)
        return note(words("runs.choose") if there else words("runs.empty", folder=folder))
    found: list[tuple[str, RunFiles]] = []
    told: list[str] = []
    for name in names:
        try:
            found.append((name, read_run(folder / name)))
        except CheckpointError as error:
            told.append(note(str(error)))
    label = words(f"runs.{over}")
    charts = [
        LineChart(
            words(f"runs.{which}"),
            label,
            tuple(
                Series(name, run.series(f"{which}_loss", over=over), place % _COLORS, dots=dots)
                for place, (name, run) in enumerate(found)
            ),
        ).render()
        for which, dots in (("valid", True), ("train", False))
    ]
    drawn = f'<div class="tv-charts">{"".join(charts)}</div>' if found else ""
    below = note(words("runs.note", seconds=f"{_EVERY:g}"))
    return drawn + _table(folder, found, words) + "".join(told) + below


def _table(folder: Path, found: Sequence[tuple[str, RunFiles]], words: Words) -> str:
    if not found:
        return ""
    keys = ("runs.step", "runs.tokens", "runs.last-train", "runs.best-valid", "runs.speed")
    rows = []
    for name, run in found:
        live = f" ({words('runs.live')})" if _is_live(folder / name / METRICS) else ""
        last = run.metrics[-1]
        valid = run.series("valid_loss")
        rows.append(
            (
                name + live,
                f"{int(last.get('step', 0)):,}",
                short(float(last.get("tokens", 0))),
                _last(run, "train_loss"),
                f"{min(y for _, y in valid):.4f}" if valid else "",
                _last(run, "tokens_per_second", short),
            )
        )
    return table([words("runs.run"), *map(words, keys)], rows, numbers=range(1, 6))


def _last(run: RunFiles, key: str, shape: Any = "{:.4f}".format) -> str:
    points = run.series(key)
    return escape(shape(points[-1][1])) if points else ""
