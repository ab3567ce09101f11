"""`trivium clean`: filter raw text with the quality rules of published datasets.

Examples:

  trivium clean crawl/ --out cleaned/

  trivium clean crawl/ --out cleaned/ --language zh --processes 8

  trivium clean 'wiki/*.jsonl' --out cleaned/ --rule gopher --rule gopher-repetition

  trivium prepare cleaned/ --tokenizer tokenizer.json --out shards/
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.cli._tables import add_text_column, make_table, print_table
from trivium.data.cleaning import REMOVED_LINES, REPORT, RULES, CleanOptions, CleanReport
from trivium.data.cleaning import clean as clean_texts
from trivium.messages import translate_english, translated
from trivium.progress import ProgressLine


@opt.with_options(CleanOptions, exclude=["rules", "processes"])
def clean(
    paths: list[str],
    out: Annotated[Path, typer.Option()],
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            help=f"Quality rules to apply: {', '.join(RULES)}, or none. Repeatable.",
            show_default="all; c4 only for English",
        ),
    ] = None,
    processes: opt.Positive = 1,
    overwrite: opt.Overwrite = False,
    **options: Any,
) -> None:
    """Filter documents by language and quality rules, and drop near-duplicates.

    The rules are those of Gopher, C4 and FineWeb, as implemented in the library datatrove. They are
    designed for web pages. The command prints how many documents each rule dropped; report.json
    contains five samples for each reason.

    Args:
        paths: Texts: files, globs, folders or hf:NAME[:CONFIG][:SPLIT].
        out: The output folder, for the kept documents (JSON lines) and report.json.
        processes: Number of processes that apply the rules.
    """
    chosen = RULES if rules is None else () if rules == ["none"] else tuple(rules)
    log = ProgressLine()
    with log.running():
        report = clean_texts(
            paths,
            out,
            CleanOptions(rules=chosen, processes=processes, **options),
            overwrite=overwrite,
            progress=lambda now: log.update(translated("clean.documents", count=now.documents)),
        )
    _print_report(report)
    typer.echo(f"{translated('label.report')}  {out / REPORT}")


def _print_report(report: CleanReport) -> None:
    """Print the number of kept documents, and a table of the dropped documents by reason.

    The table has a sample document for each reason.
    """
    table = make_table("dropped", "documents", "share")
    add_text_column(table, "such_as", max_width=70)
    for why, count in report.most_common():
        share = f"{count / report.documents:.1%}"
        table.add_row(translate_english(why), f"{count:,}", share, report.samples[why][0])
    share = f"{report.kept / report.documents:.1%}"
    table.add_row(translated("clean.kept"), f"{report.kept:,}", share, "")
    print_table(table)
    kept = translated(
        "clean.result",
        kept=report.kept_characters,
        all=report.characters,
        removed=report.removed_lines,
    )
    typer.echo(kept)
    for line in report.samples.get(REMOVED_LINES, [])[:1]:
        typer.echo(translated("clean.removed_line", name=REMOVED_LINES, line=line))
