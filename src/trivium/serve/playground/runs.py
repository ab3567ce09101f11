"""The playground tab with the loss curves of training runs, including runs in progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pandas as pd

from trivium.files import read_json_lines
from trivium.report.html_report import thin_curve
from trivium.report.run_files import METRICS, extract_curve
from trivium.serve.playground.tabs import EVENT
from trivium.serve.playground.texts import make_label, translate

_AXES, _LOSSES = ("step", "tokens", "seconds"), ("valid_loss", "train_loss")
_EVERY_SECONDS = 2.0
_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#eeca3b")


def build_runs_tab(folder: Path) -> gr.Dropdown:
    """Build the tab of loss curves. The plots are updated when a run logs new metrics.

    `folder` is the folder that contains the runs. Returns the menu in which runs are chosen.
    """
    with gr.Row():
        chosen = gr.Dropdown(
            [], multiselect=True, label=make_label("runs.shown"), elem_id="runs-runs"
        )
        axis = gr.Radio(
            [(make_label(f"runs.{axis}"), axis) for axis in _AXES],
            value="step",
            label=make_label("runs.axis"),
        )
    plots = [
        gr.LinePlot(
            x="x",
            y=loss,
            color="run",
            x_axis_format=",~f",
            x_title=" ",
            y_title=" ",
            color_title=" ",
            label=make_label(f"runs.{loss}"),
            elem_id=f"runs-{loss}",
        )
        for loss in _LOSSES
    ]
    drawn = gr.State(None)

    def update_plots(names: list[str], axis: str, before: Any) -> tuple[Any, ...]:
        """Return the menu of runs, the plots, and the new state.

        If nothing has changed, return no updates.

        `before` is the state at the last update. If it is None, the newest run is selected.
        """
        known = list_runs(folder)
        # At first only the newest run, because losses of different objectives do not compare.
        names = known[:1] if before is None else [n for n in names if n in known]
        files = {name: folder / name / METRICS for name in names}
        now = (axis, known, [(name, file.stat().st_size) for name, file in files.items()])
        if now == before:
            return (gr.skip(),) * 4
        curves = _read_curves(files, axis)
        of_losses = [curves[curves[loss].notna()] for loss in _LOSSES]
        return gr.Dropdown(known, value=names, multiselect=True), *of_losses, now

    hidden = {**EVENT, "show_progress": "hidden"}
    gr.on(
        [gr.Timer(_EVERY_SECONDS).tick, chosen.input, axis.input],
        update_plots,
        [chosen, axis, drawn],
        [chosen, *plots, drawn],
        **hidden,
    )

    def update_legends(names: list[str], axis: str, request: gr.Request) -> list[Any]:
        """Return new settings for each plot: a fixed color per run, and the label of the x axis."""
        colors = {name: _COLORS[n % len(_COLORS)] for n, name in enumerate(names)}
        title = translate(f"runs.{axis}", request)
        plot = gr.LinePlot(colors_in_legend=names, color_map=colors, x_title=title)
        return [plot] * len(plots)

    # The legends are set after the points, because new points reset the legends.
    drawn.change(update_legends, [chosen, axis], plots, **hidden)
    return chosen


def list_runs(folder: Path) -> list[str]:
    """Return the names of the runs in a folder, newest first.

    If the folder itself is a run, it is included with the name ".".
    """
    files = [*folder.glob(METRICS), *folder.glob(f"*/{METRICS}")]
    newest = sorted(files, key=lambda file: -file.stat().st_mtime)
    return [file.parent.relative_to(folder).as_posix() for file in newest]


def _read_curves(files: dict[str, Path], axis: str) -> pd.DataFrame:
    """Read the loss curves of runs. Returns a table with columns for x, the run and each loss.

    Args:
        files: run name -> its metrics.jsonl.
        axis: the key of the x values: "step", "tokens" or "seconds".
    """
    points: list[dict[str, Any]] = []
    for name, file in files.items():
        records = read_json_lines(file)
        for loss in _LOSSES:
            thinned = thin_curve(extract_curve(records, loss, axis))
            points += [{"x": x, loss: y, "run": name} for x, y in thinned]
    table = pd.DataFrame(points, columns=["x", *_LOSSES, "run"])
    # An empty table has no types, and Gradio would draw axes of categories, also later.
    return table.astype({"x": float, **dict.fromkeys(_LOSSES, float)})
