"""What a fine-tuned run says of its task: figures, classes, confusion, the worst mistakes."""

from __future__ import annotations

from html import escape
from typing import Any

from trivium.report.charts import LineChart, Series
from trivium.report.confusion import confusion_figure
from trivium.report.page import table, tiles
from trivium.report.run_files import RunFiles, number

_TASKS = {
    "classification": "classifies texts",
    "tagging": "tags words",
    "qa": "answers questions on a text",
    "translation": "translates",
    "text-to-text": "writes what is asked of a text",
    "summarization": "sums texts up",
    "lm": "answers prompts",
}
# Whose loss is that of tokens, in nats each.
_OF_TOKENS = ("translation", "text-to-text", "summarization", "lm")
_LOWER_IS_BETTER = ("loss", "mae", "mse", "perplexity")
_MOST_CHARACTERS = 300


def task_words(run: RunFiles) -> str | None:
    """What the model was taught, None for a run that is no fine-tuning."""
    return None if run.task is None else _TASKS.get(run.task, run.task)


def tells_tokens(run: RunFiles) -> bool:
    """Whether its loss is one of tokens."""
    return run.task is None or run.task in _OF_TOKENS


def lower_is_better(metric: str) -> bool:
    """Of losses and errors."""
    return metric in _LOWER_IS_BETTER


def metric_chart(run: RunFiles) -> str:
    """The metric at every evaluation; nothing where it is the loss."""
    name = run.metric
    if name is None or name == "loss":
        return ""
    points = run.series(f"valid_{name}")
    title = f"{name} on held-out examples"
    return LineChart(title, "step", (Series(name, points, 2, dots=True),)).render()


def figure_tiles(run: RunFiles) -> str:
    """All overall figures, large."""
    found = run.evaluation.get("figures")
    figures = found if isinstance(found, dict) else {}
    known = ((name, number(value)) for name, value in figures.items())
    pairs = [(str(name), _figure(value)) for name, value in known if value is not None]
    signatures = "".join(f'<p class="soft">{escape(one)}</p>' for one in _texts(run, "signatures"))
    return (tiles(pairs) if pairs else "") + signatures


def class_table(run: RunFiles) -> str:
    """Results by class, where there are classes."""
    rows = run.evaluation.get("table")
    found = rows if isinstance(rows, list) else []
    texts = [[str(cell) for cell in row] for row in found if isinstance(row, list)]
    if len(texts) < 2 or len(texts[0]) < 3 or texts[0][0] == "Metric":
        return ""
    return f"<h3>By {escape(texts[0][0].lower())}</h3>{table(texts[0], texts[1:])}"


def confusion(run: RunFiles) -> str:
    """The picture of what is taken for what."""
    names, counts = _texts(run, "names"), _counts(run)
    if not counts or len(counts) != len(names):
        return ""
    return confusion_figure(names, counts)


def mistakes_table(run: RunFiles) -> str:
    """The wrong answers that the model was surest of."""
    found = run.evaluation.get("mistakes")
    rows = [
        (
            _shortened(one.get("text")),
            _shortened(one.get("gold")),
            _shortened(one.get("predicted")),
            str(one.get("where", "")).rpartition("/")[2],
            _share(one.get("confidence")),
        )
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict)
    ]
    head = ("Text", "Right", "Predicted", "Where", "Sure")
    return f'<div class="mistakes">{table(head, rows, text_columns=4)}</div>' if rows else ""


def majority(run: RunFiles) -> tuple[str, float] | None:
    """The most frequent class of held-out texts and its share, where classes are known."""
    names, counts = _texts(run, "names"), _counts(run)
    total = sum(map(sum, counts))
    if not total or len(names) != len(counts):
        return None
    sizes = [sum(row) for row in counts]
    return names[sizes.index(max(sizes))], max(sizes) / total


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) >= 2 else f"{value:.4g}"


def _counts(run: RunFiles) -> list[list[int]]:
    rows = run.evaluation.get("confusion")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return []
    found = [[int(number(count) or 0) for count in row] for row in rows]
    return found if all(len(row) == len(found) for row in found) else []


def _texts(run: RunFiles, key: str) -> list[str]:
    found = run.evaluation.get(key)
    return [str(one) for one in found] if isinstance(found, list) else []


def _shortened(text: Any) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 3]}..."


def _share(value: object) -> str:
    found = number(value)
    return "" if not found else f"{found:.0%}"
