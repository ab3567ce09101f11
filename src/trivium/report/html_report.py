"""HTML reports and comparisons of runs, made from the templates in `templates/`."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from trivium.errors import CheckpointError
from trivium.files import write_file
from trivium.messages import detect_language, translated
from trivium.progress import format_duration
from trivium.report.common_table import find_different_settings, name_runs
from trivium.report.ranking import describe_differences, format_ranking, have_same_text, rank_runs
from trivium.report.run_files import Points, RunFiles, read_run, to_float
from trivium.report.summary import format_summary, summarize
from trivium.text import Tokenizer

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_POINTS = 500  # per curve
_MAX_LABELS = 60  # per confusion matrix
_NUM_EXAMPLE_TOKENS = 36


def write_report(run_folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run as an HTML page, and return the path of the page.

    The run may be unfinished.

    Args:
        run_folder: the folder of the run.
        out: the path of the page; default: `report.html` in the run folder.

    Raises:
        CheckpointError: the folder contains no run, or the run has no log records yet.
    """
    run = read_run(run_folder)
    summary = summarize(run)
    losses = {
        translated("report.training_curve"): run.get_curve("train_loss"),
        translated("report.validation_curve"): run.get_curve("valid_loss"),
    }
    for name in run.loss_terms:
        if not name.endswith("_accuracy"):
            curve = translated("report.validation_curve_of", name=name)
            losses[curve] = run.get_curve(f"valid_{name}")
    speed = translated("report.tokens_per_second")
    points = (run.evaluation.get("calibration") or {}).get("points", [])
    accuracy = translated("report.accuracy")
    return _write_page(
        Path(out or run.folder / "report.html"),
        "report.html.j2",
        title=run.name,
        run=run,
        summary=summary,
        loss_chart=make_line_chart(
            translated("report.loss_in_unit", unit=run.unit), losses, levels=run.baselines
        ),
        metric_chart=_make_metric_chart(run),
        training_charts=[
            *(
                make_line_chart(name, {name: run.get_curve(f"train_{name}")})
                for name in run.policy_metrics
            ),
            make_line_chart(
                translated("report.learning_rate"), {"lr": run.get_curve("lr")}, from_zero=True
            ),
            make_line_chart(speed, {speed: run.get_curve("tokens_per_second")}, from_zero=True),
            make_line_chart(
                translated("report.gradient_norm"),
                {translated("report.norm"): run.get_curve("grad_norm")},
            ),
        ],
        confusion=make_confusion_matrix(run.evaluation),
        coverage_chart=make_line_chart(
            translated("report.accuracy_by_coverage"),
            {accuracy: [one[1:] for one in points]},
            x_label="coverage",
        ),
        tokenizers=_describe_tokenizers(run),
    )


def write_comparison(run_folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write an HTML page that compares and ranks runs, and return the path of the page.

    The charts show the losses over steps, tokens and time.

    Raises:
        CheckpointError: there are fewer than two runs, or a folder contains no run.
    """
    if len(run_folders) < 2:
        raise CheckpointError(f"A comparison needs two or more runs, not {len(run_folders)}.")
    runs = [read_run(folder) for folder in run_folders]
    names, summaries = name_runs(runs), [summarize(run) for run in runs]
    levels = runs[0].baselines if have_same_text(runs) else {}

    def plot(
        title: str, key: str, over: str, levels: dict[str, float], objective: str | None = None
    ) -> dict[str, Any] | None:
        """Return a chart of the logged value `key` with one curve per run.

        `over` is the quantity on the x-axis, and `levels` are horizontal reference lines. If
        `objective` is set, only runs with this objective are shown.
        """
        chosen = [(n, run) for n, run in zip(names, runs) if objective in (None, run.objective)]
        series = {name: run.get_curve(key, over=over) for name, run in chosen}
        zero = key == "tokens_per_second"
        title = translated("comparison.over_axis", title=title, axis=translated(f"axis.{over}"))
        title += f", {objective}" if len(chosen) < len(runs) else ""
        return make_line_chart(title, series, x_label=over, levels=levels, from_zero=zero)

    charts = []
    metrics = {run.metric for run in runs}
    if len(metrics) == 1 and (metric := metrics.pop()) is not None:
        charts.append(plot(metric, f"valid_{metric}", "step", {}))
    # Losses of different objectives do not compare, so each objective has its own charts.
    for objective in dict.fromkeys(run.objective for run in runs):
        for over in ("tokens", "seconds", "step"):
            charts.append(
                plot(translated("report.validation_loss"), "valid_loss", over, levels, objective)
            )
        charts.append(
            plot(translated("report.training_loss"), "train_loss", "tokens", levels, objective)
        )
    charts.append(plot(translated("report.tokens_per_second"), "tokens_per_second", "step", {}))
    return _write_page(
        Path(out),
        "comparison.html.j2",
        title=translated("comparison.title", count=len(runs)),
        rows=list(zip(names, runs, summaries, strict=True)),
        rankings=rank_runs(runs, names),
        warnings=describe_differences(runs),
        settings=find_different_settings(runs),
        charts=charts,
    )


def format_report(run_folders: Sequence[str | Path]) -> str:
    """Return a report as plain text: the summary of one run, or a comparison of several runs.

    A comparison contains the verdict on each run, the rankings, and warnings about differences.
    """
    runs = [read_run(folder) for folder in run_folders]
    if len(runs) == 1:
        return format_summary(runs[0])
    names, colon = name_runs(runs), translated("join.colon")
    texts = [f"{name}{colon}{summarize(run).verdict}" for name, run in zip(names, runs)]
    texts += [format_ranking(ranking) for ranking in rank_runs(runs, names)]
    return "\n\n".join([*texts, *describe_differences(runs)])


def _make_metric_chart(run: RunFiles) -> dict[str, Any] | None:
    """Return the chart of a run's main metric, or of its logged accuracies if it has no metric."""
    metric = run.metric
    if metric is None or metric == "loss":
        names = [name for name in run.loss_terms if name.endswith("_accuracy")]
        return make_line_chart(
            translated("report.accuracy"), {name: run.get_curve(f"valid_{name}") for name in names}
        )
    limit = run.metadata_number("eval_examples") or 0
    total = run.metadata_number("valid_examples") or 0
    measured = run.metadata_number("metric_examples") or 0
    title = translated("report.metric_on_examples", metric=metric)
    if 0 < limit < total:
        title = translated("report.metric_on_some_examples", metric=metric, count=measured)
    return make_line_chart(title, {metric: run.get_curve(f"valid_{metric}")})


def _format_value(value: Any) -> str:
    """Format a value for a table. Numbers get thousands separators."""
    value_number = to_float(value)
    if value_number is None:
        return str(value)
    return f"{value_number:,.0f}" if value_number.is_integer() else f"{value_number:,.4f}"


def make_line_chart(
    y_label: str,
    series: Mapping[str, Points],
    *,
    x_label: str = "step",
    levels: Mapping[str, float] | None = None,
    from_zero: bool = False,
) -> dict[str, Any] | None:
    """Return the data of a line chart, which `templates/charts.js` draws with uPlot.

    Returns None if there are no points.

    Args:
        y_label: the title of the chart: the quantity on the y-axis, with its unit.
        series: the curves: a dict from the name of a curve to its (x, y) points. Empty curves are
            omitted.
        x_label: the quantity on the x-axis, such as "step".
        levels: horizontal reference lines: a dict from the name of a line to its y value.
        from_zero: whether the y-axis starts at 0.
    """
    lines = []
    for color, (name, points) in enumerate(series.items()):
        if points:
            xs, ys = zip(*thin_curve(points), strict=True)
            lines.append({"name": name, "x": xs, "y": ys, "color": color % 8})
    if not lines:
        return None
    return {
        "title": y_label,
        "x_label": translated(f"axis.{x_label}"),
        "series": lines,
        "levels": [{"name": name, "value": value} for name, value in (levels or {}).items()],
        "from_zero": from_zero,
    }


def thin_curve(points: Points, max_points: int = _MAX_POINTS) -> list[tuple[float, float]]:
    """Reduce a curve to at most `max_points` points, by averaging neighbouring points.

    The first and the last point are not changed.

    >>> thin_curve([(0, 1), (1, 2), (2, 4), (3, 5)], 3)
    [(0, 1), (1.5, 3.0), (3, 5)]
    """
    if len(points) <= max_points:
        return list(points)
    groups = np.array_split(np.array(points[1:-1]), max_points - 2)
    return [points[0], *(tuple(group.mean(axis=0).tolist()) for group in groups), points[-1]]


def make_confusion_matrix(evaluation: dict[str, Any]) -> dict[str, Any] | None:
    """Return the confusion matrix for the report template, or None if there is none.

    The result is a dict with the keys labels, rows and total (the total number of labels). A row is
    a pair (label, cells). A cell is a tuple (count, fraction of the row's total, whether it is on
    the diagonal). If there are more than 60 labels, only the most frequent 60 are included.

    Args:
        evaluation: the contents of evaluation.json.
    """
    labels, counts = evaluation.get("labels") or [], evaluation.get("confusion") or []
    if not counts or len(labels) != len(counts):
        return None
    sizes = [sum(row) for row in counts]
    kept = sorted(range(len(labels)), key=lambda label: -sizes[label])[:_MAX_LABELS]
    kept.sort()
    rows = []
    for row in kept:
        size = max(1, sizes[row])
        cells = [(counts[row][label], counts[row][label] / size, row == label) for label in kept]
        rows.append((labels[row], cells))
    return {"labels": [labels[label] for label in kept], "rows": rows, "total": len(labels)}


def _describe_tokenizers(run: RunFiles) -> dict[str, dict[str, Any]]:
    """Return the vocabulary statistics of each tokenizer. The keys are headings of the report."""
    own, tokenizers = translated("report.tokenizer"), dict[str, Tokenizer | None]()
    if run.source_tokenizer is not None:
        own = translated("report.target_tokenizer")
        tokenizers[translated("report.source_tokenizer")] = run.source_tokenizer
    tokenizers[own] = run.tokenizer
    return {
        title: compute_token_statistics(one) for title, one in tokenizers.items() if one is not None
    }


def compute_token_statistics(tokenizer: Tokenizer) -> dict[str, Any]:
    """Compute statistics of a vocabulary: sizes, token lengths in characters, and example tokens.

    A length above 13 is counted as 13. A token that is only a part of a character has length 0.
    """
    special = set(tokenizer.special_ids)
    ids = [index for index, token in enumerate(tokenizer.tokens) if token and index not in special]
    tokens = [tokenizer.readable_tokens[index] for index in ids]
    continuing = sum(tokenizer.vocabulary.continues_word.tolist())
    # A token that is only part of a character has the length 0.
    texts = (tokenizer.token_bytes[index].decode(errors="ignore") for index in ids)
    lengths = Counter(min(13, len(text)) for text in texts)
    step = max(1, len(tokens) // _NUM_EXAMPLE_TOKENS)
    longest = sorted(tokens, key=lambda token: (-len(token), token))[:12]
    return {
        "kind": tokenizer.kind,
        "size": tokenizer.vocab_size,
        "merges": len(tokenizer.merges),
        "continuing": continuing,
        "lengths": sorted(lengths.items()),
        "examples": {
            translated("report.special_tokens"): _shorten_token_list(
                [tokenizer.tokens[i] for i in tokenizer.special_ids]
            ),
            translated("report.example_tokens"): tokens[step // 2 :: step][:_NUM_EXAMPLE_TOKENS],
            # In Chinese WordPiece vocabularies, all tokens are single characters.
            translated("report.longest_tokens"): longest if max(lengths, default=0) > 1 else [],
        },
    }


def _shorten_token_list(tokens: list[str]) -> list[str]:
    """Shorten a long list of tokens for display (for example the 100 sentinel tokens of T5)."""
    more = len(tokens) - _NUM_EXAMPLE_TOKENS
    if more <= 0:
        return tokens
    return [*tokens[:_NUM_EXAMPLE_TOKENS], translated("report.more_tokens", count=more)]


def format_short(value: float) -> str:
    """Format a number with about four digits. Large numbers get the suffix k, M or G.

    >>> format_short(12500), format_short(2.5), format_short(0.0003)
    ('12.5k', '2.5', '0.0003')
    """
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.4g}{unit}"
    return f"{value:.4g}"


def _write_page(path: Path, template: str, **values: Any) -> Path:
    """Render a template with the given values, and write the page to a file. Returns its path."""
    files = ("vendor/uPlot.iife.min.js", "charts.js", "vendor/uPlot.min.css", "page.css")
    *scripts, vendor_style, own_style = ((_TEMPLATES / name).read_text("utf-8") for name in files)
    # The page loads nothing and runs no other script, even if texts of the run contain HTML.
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    sources = " ".join(f"'sha256-{one}'" for one in hashes)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {sources}"
    style = vendor_style + own_style
    page = _make_environment().get_template(template)
    path.parent.mkdir(parents=True, exist_ok=True)
    values["language"] = detect_language()
    write_file(path, page.render(scripts=scripts, style=style, policy=policy, **values))
    return path


@functools.cache
def _make_environment() -> jinja2.Environment:
    """Create the Jinja environment of the templates, with filters and translations."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    pretty = functools.partial(json.dumps, indent=2, ensure_ascii=False)
    environment.filters |= {"short": format_short, "duration": format_duration}
    environment.filters |= {"number": to_float, "shown": _format_value, "pretty": pretty}
    environment.globals["_"] = translated
    return environment
