"""What was measured, written down and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trivium.interop.settings import Settings
from trivium.train.run import RunFolder
from trivium.workflows.tasks.base import Measured

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.jsonl"
_CLASSES_SHOWN, _MISTAKES_SHOWN, _CHARACTERS = 20, 5, 70


def write_measured(run: Path, task: str, settings: Settings, measured: Measured) -> None:
    """Figures, table of classes, confusion and mistakes into `evaluation.json` of a run.

    All answers go into `predictions.jsonl`, one held-out example a line.
    """
    metrics = measured.metrics
    name, value = metrics.main
    folder = RunFolder(run)
    folder.write_json(
        run / EVALUATION,
        {
            "task": task,
            "metric": name,
            "score": value,
            "figures": {**metrics.to_dict(), **measured.figures},
            "table": [list(row) for row in metrics.table()],
            "signatures": _signatures(metrics),
            "names": list(getattr(metrics, "names", ())),
            "confusion": [list(row) for row in getattr(metrics, "confusion", ())],
            "mistakes": [asdict(mistake) for mistake in measured.mistakes],
        },
    )
    if measured.predictions:
        lines = (json.dumps(answer, ensure_ascii=False) for answer in measured.predictions)
        folder.write_text(run / PREDICTIONS, "".join(f"{line}\n" for line in lines))


def _signatures(metrics: Any) -> list[str]:
    names = ("bleu_signature", "chrf_signature")
    return [str(getattr(metrics, name)) for name in names if hasattr(metrics, name)]


def show_measured(measured: Measured, say: Callable[[str], None]) -> None:
    """Figures, the table of classes, and the worst mistakes, in lines."""
    metrics = measured.metrics
    figures = {**metrics.to_dict(), **measured.figures}
    say("measured   " + ", ".join(f"{key} {_number(key, value)}" for key, value in figures.items()))
    for signature in _signatures(metrics):
        say(f"           {signature}")
    head, *rows = metrics.table()
    if rows and len(head) > 2 and head[0] != "Metric":
        widths = [
            max(len(row[n]) for row in (head, *rows[:_CLASSES_SHOWN])) for n in range(len(head))
        ]
        for row in (head, *rows[:_CLASSES_SHOWN]):
            say("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        if len(rows) > _CLASSES_SHOWN:
            say(f"  ... and {len(rows) - _CLASSES_SHOWN} more in evaluation.json")
    for mistake in measured.mistakes[:_MISTAKES_SHOWN]:
        text = " ".join(mistake.text.split())
        text = text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."
        say(f"mistake    {mistake.where}: {text!r} is {mistake.gold!r}, not {mistake.predicted!r}")


def _number(name: str, value: float) -> str:
    counted = name in ("count", "tokens") or name.endswith("total")
    return f"{value:,.0f}" if counted else f"{value:.4f}"
