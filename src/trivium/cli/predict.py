"""`trivium predict`: predict a label for every row of a table.

Examples:

  trivium predict runs/sentiment new.csv --out scored.csv

  trivium predict runs/sentiment new.csv --out scored.parquet --set objective.text_field=review

  trivium predict runs/topics mail.jsonl --out scored.csv --threshold 0.8 --below other
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.data.documents import ReadOptions
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated
from trivium.progress import ProgressLine, labelled


@opt.with_options(ReadOptions, exclude=["separator", "text_field"])
def predict(
    model: opt.Model,
    files: Annotated[list[str], typer.Argument(metavar="FILE")],
    out: Annotated[Path, typer.Option(show_default=False)],
    threshold: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    below: str | None = None,
    prefix: str = "",
    changes: opt.TaskSet = None,
    device: opt.Device = "auto",
    **data_options: Any,
) -> None:
    """Copy a table and add the columns prediction, score, runner_up and runner_up_score.

    The input has the same format as for `finetune` with the model's task, but needs no labels. The
    order and the values of the existing columns do not change. Tagging and question answering have
    no runner-up; a regression model only adds the column prediction.

    Args:
        files: Records in the format of the training data: CSV, TSV, JSON lines or Parquet.
        out: The output file: .csv, .tsv, .jsonl or .parquet, in UTF-8.
        threshold: With --below: the minimum score for a prediction to be kept.
        below: The label that replaces predictions with a score below --threshold.
        prefix: Prefix for the names of the added columns.
    """
    with exit_on_interrupt():
        from trivium.workflows.predict import predict as write_predictions

    log = ProgressLine()

    def show_progress(done: int, total: int) -> None:
        """Show the number of processed rows in the progress line."""
        log.update_or_log(translated("predict.rows", count=done, total=total))

    with log.running():
        result = write_predictions(
            model,
            files,
            out,
            threshold=threshold,
            below=below,
            prefix=prefix,
            device=device,
            reading=ReadOptions(**data_options),
            changes=changes or (),
            progress=show_progress,
        )
    for index, columns in enumerate(result.columns):
        log.print_line(labelled("" if index else "columns", columns))
    log.print_line(translated("predict.written", file=out, count=result.num_rows))
    if below:
        log.print_line(translated("predict.below", count=result.num_below, label=below))
