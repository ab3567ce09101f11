"""Several runs on one page: their curves over each other, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from trivium.errors import CheckpointError
from trivium.report.charts import Level, LineChart, Series, short
from trivium.report.html import UNIGRAM_LABEL
from trivium.report.page import page, section, table, write_page
from trivium.report.ranking import Ranking, rankings
from trivium.report.run_files import RunFiles, read_run
from trivium.report.summary import Summary, duration, summarize

_COLORS = 8


def write_comparison(run_folders: Sequence[Path], out: Path) -> Path:
    """Write a page that lays runs over each other, over steps, tokens and time.

    Raises:
        CheckpointError: fewer than two runs, or a folder that holds none.
    """
    if len(run_folders) < 2:
        raise CheckpointError(f"a comparison takes two or more runs; given: {len(run_folders)}.")
    runs = [read_run(folder) for folder in run_folders]
    return write_page(out, render_comparison(runs))


def render_comparison(runs: Sequence[RunFiles]) -> str:
    """The comparison as one HTML document."""
    summaries = [summarize(run) for run in runs]
    names = run_names(runs)
    levels = _common_levels(runs, summaries)
    axes = (("tokens", "tokens"), ("seconds", "seconds"), ("step", "step"))
    validation = [
        _chart("Validation loss (nats a token)", "valid_loss", runs, names, axis, levels)
        for axis in axes
    ]
    training = _chart("Training loss (nats a token)", "train_loss", runs, names, axes[0], levels)
    speed = _chart("Throughput (tokens a second)", "tokens_per_second", runs, names, axes[2], ())
    verdicts = "".join(
        f"<p><b>{escape(name)}</b>: {escape(summary.verdict)}</p>"
        for name, summary in zip(names, summaries, strict=True)
    )
    parts = [
        f"<h1>{len(runs)} runs</h1>",
        f'<div class="compact">{_table(runs, names, summaries)}</div>',
        '<p class="soft">Best loss: the lowest on validation text, in nats a token. '
        "Frequency: the loss of guessing by word frequency.</p>",
        *(_ranking(one) for one in rankings(runs, names)),
        verdicts,
        section("Validation", *validation),
        section("Training", training, speed),
    ]
    return page(f"{len(runs)} runs compared", parts)


def run_names(runs: Sequence[RunFiles]) -> list[str]:
    """The folders' names; where two are equal, the paths as given."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _ranking(ranking: Ranking) -> str:
    """A table of places; counts stand between the runs without one."""
    rows = [
        (
            "" if line.place is None else f"{line.place}.",
            line.name,
            line.model,
            _or_empty(line.parameters),
            f"{line.loss:.4f}",
            "" if line.bits is None else f"{line.bits:.3f}",
            "" if line.seconds is None else duration(line.seconds),
        )
        for line in ranking.lines
    ]
    head = ("", "Run", "Model", "Parameters", "Loss", "Bits a byte", "at")
    note = (
        "The lowest validation loss by the time the shortest run had ended, in nats a token."
        if ranking.same_text
        else "Not the same text or tokenizer: tokens are no common measure, bits a byte are one "
        "where the text is the same."
    )
    return section(
        f"Ranking: {ranking.heading}",
        f'<p class="soft">{escape(note)}</p>',
        table(head, rows, text_columns=3),
    )


def _common_levels(runs: Sequence[RunFiles], summaries: Sequence[Summary]) -> tuple[Level, ...]:
    """Lines of what counting reaches, where the runs share text and tokenizer."""
    found = {round(one.unigram_loss, 2) for one in summaries if one.unigram_loss is not None}
    if len(found) != 1:
        return ()
    levels = [Level(UNIGRAM_LABEL, found.pop())]
    counted = [run.count_losses for run in runs if run.tells_next and run.count_losses]
    if counted and len(counted) == len(runs):
        # Word frequencies have their line already.
        levels += [Level(label, loss) for label, loss in list(counted[0].items())[1:]]
    return tuple(levels)


def _chart(
    title: str,
    key: str,
    runs: Sequence[RunFiles],
    names: Sequence[str],
    axis: tuple[str, str],
    levels: tuple[Level, ...],
) -> str:
    over, label = axis
    series = tuple(
        Series(name, run.series(key, over=over), index % _COLORS, dots=key == "valid_loss")
        for index, (run, name) in enumerate(zip(runs, names, strict=True))
    )
    return LineChart(title, label, series, levels, from_zero="second)" in title).render()


def _table(runs: Sequence[RunFiles], names: Sequence[str], summaries: Sequence[Summary]) -> str:
    head = (
        "Run",
        "Model",
        "Parameters",
        "Best loss",
        "at step",
        "Frequency",
        "Tokens",
        "Time",
        "Tokens/s",
    )
    rows = []
    for run, name, one in zip(runs, names, summaries, strict=True):
        best = one.best
        rows.append(
            (
                name,
                str(run.setting("model", "preset") or ""),
                _or_empty(run.fact("num_parameters")),
                f"{best.valid_loss:.4f}" if best else "",
                f"{best.step:,}" if best else "",
                "" if one.unigram_loss is None else f"{one.unigram_loss:.3f}",
                _or_empty(one.tokens),
                "" if one.seconds is None else duration(one.seconds),
                _or_empty(one.tokens_per_second),
            )
        )
    return table(head, rows, text_columns=2)


def _or_empty(value: float | None) -> str:
    return "" if value is None else short(value)
