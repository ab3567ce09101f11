"""The loss curves of training runs, also of those that still train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr
import pandas as pd

from trivium.serve.playground.tabs import EVENT
from trivium.serve.playground.texts import label

_METRICS, _AXES, _LOSSES = "metrics.jsonl", ("step", "tokens", "seconds"), ("valid", "train")
_NUM_SHOWN, _EVERY_SECONDS = 3, 2.0


def runs_tab(folder: Path) -> None:
    """Curves of chosen runs, drawn again when there is something new."""
    with gr.Row():
        chosen = gr.Dropdown([], multiselect=True, label=label("runs.shown"), elem_id="runs-runs")
        axis = gr.Radio(
            [(label(f"runs.{axis}"), axis) for axis in _AXES],
            value="step",
            label=label("runs.axis"),
        )
    # Points for evaluations: they are few, and of a single one there is no line.
    plots = [
        plot(
            x="x",
            y="loss",
            color="run",
            x_axis_format=",~f",
            x_title=" ",
            y_title=" ",
            color_title=" ",
            label=label(f"runs.{kind}_loss"),
            elem_id=f"runs-{kind}",
        )
        for kind, plot in zip(_LOSSES, (gr.ScatterPlot, gr.LinePlot), strict=True)
    ]
    drawn = gr.State(None)

    def draw(names: list[str], axis: str, before: Any) -> tuple[Any, ...]:
        known = run_names(folder)
        # The newest runs at first; afterwards the reader chooses.
        names = known[:_NUM_SHOWN] if before is None else [n for n in names if n in known]
        files = {name: folder / name / _METRICS for name in names}
        now = (axis, known, [(name, file.stat().st_size) for name, file in files.items()])
        if now == before:
            return (gr.skip(),) * 4
        records = {name: read_metrics(file) for name, file in files.items()}
        curves = [_curve(records, axis, f"{kind}_loss") for kind in _LOSSES]
        return gr.Dropdown(known, value=names, multiselect=True), *curves, now

    gr.on(
        [gr.Timer(_EVERY_SECONDS).tick, chosen.input, axis.input],
        draw,
        [chosen, axis, drawn],
        [chosen, *plots, drawn],
        **{**EVENT, "show_progress": "hidden"},
    )


def run_names(folder: Path) -> list[str]:
    """The runs in a folder, the newest first; the folder itself may be one."""
    files = [*folder.glob(_METRICS), *folder.glob(f"*/{_METRICS}")]
    newest = sorted(files, key=lambda file: -file.stat().st_mtime)
    return [file.parent.relative_to(folder).as_posix() for file in newest]


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The records of a run; the last line may be incomplete while it is written."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _curve(records: dict[str, list[dict[str, Any]]], axis: str, key: str) -> pd.DataFrame:
    points = [
        (record[axis], record[key], name)
        for name, run in records.items()
        for record in run
        if axis in record and record.get(key) is not None
    ]
    return pd.DataFrame(points, columns=["x", "loss", "run"])
