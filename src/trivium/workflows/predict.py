"""Prediction for tables: adds the model's predictions to the rows of a file."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trivium.data.documents import ReadOptions
from trivium.data.records import ReadReport, Record, RecordOptions
from trivium.data.sources import Paths, file_format, list_paths
from trivium.errors import DataError, RecipeError, TriviumError, require_extra
from trivium.files import STDIN, nan_to_none, replace_file
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.objectives import LabelledObjective
from trivium.remote_model import find_local_path
from trivium.train.recipe_loading import Changes
from trivium.workflows.evaluate import (
    Model,
    build_task_objective,
    infer_task,
    read_run_recipe,
    split_data_overrides,
)

_ROWS = 256  # the number of rows that the model predicts at a time
_ROW_GROUP = 4096  # the number of rows per row group of Parquet
_READING = ReadOptions()
Row = dict[str, Any]
Line = Callable[[Row, Sequence[str]], str]


class PredictionSummary(NamedTuple):
    """Counts and messages about a call of `predict`.

    Args:
        num_rows: the number of rows written.
        num_below: the number of rows with a score below the threshold.
        columns: messages that say which columns were read.
    """

    num_rows: int
    num_below: int
    columns: Sequence[str]


def predict(
    model: Model,
    data: Paths,
    out: str | os.PathLike[str],
    *,
    threshold: float | None = None,
    below: str | None = None,
    prefix: str = "",
    reading: ReadOptions = _READING,
    changes: Changes = (),
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> PredictionSummary:
    """Make a prediction for every input record, and write the records with the predictions.

    The input files are read twice: first to check every record, then to predict in batches. All
    columns keep their order and values. The columns prediction, score, runner_up and
    runner_up_score are added at the end. A regression model adds only the column prediction. `out`
    appears only when it is complete.

    Args:
        model: a run, a checkpoint, a saved model, a Hugging Face folder or name, or a
            `LanguageModel`.
        data: files with records in the format of the model's task. The records need no labels.
        out: the file to write: .csv, .tsv, .jsonl or .parquet.
        threshold: the score below which the prediction is replaced with `below`; only for models
            that predict one class per text.
        below: the label for texts with a score below the threshold.
        prefix: a prefix for the names of the added columns.
        reading: the encoding of the input files, and how invalid bytes are handled. The output is
            always UTF-8.
        changes: overrides for keys of the task's objective, such as
            ["objective.text_field=review"], and for data.encoding and data.errors.
        device: the device to load the model to. Ignored for a `LanguageModel`.
        progress: called with the number of predicted records and the total number of records.

    Raises:
        DataError: a record cannot be read, its text is blank, or it cannot be written in the format
            of `out`.
        TriviumError: the task has no labels, or does not support the threshold.
    """
    out, paths = Path(out), list_paths(data)
    format_line = _choose_line_formatter(out, paths)
    if (threshold is None) != (below is None) or not 0 < (threshold or 1) <= 1:
        raise TriviumError("give a threshold from 0 to 1 and the label below it, or neither.")
    changes, keys = split_data_overrides(changes)
    if keys.keys() - {"errors", "encoding"}:
        raise RecipeError("predict uses data.encoding and data.errors, and no other key of data.")
    reading = replace(reading, **keys)
    options = RecordOptions(errors=reading.errors, encoding=reading.encoding)
    recipe = {} if isinstance(model, LanguageModel) else read_run_recipe(find_local_path(model))
    lm = model if isinstance(model, LanguageModel) else load(model, device=device)
    task = infer_task(lm)
    known = [name for name, kind in LabelledObjective.kinds.items() if getattr(kind, "inputs", ())]
    if task not in known:
        raise TriviumError(
            f"predict is for tasks with labels ({', '.join(known)}), and this model is for {task}."
        )
    objective = build_task_objective(lm, task, recipe, changes)
    added_columns = [prefix + name for name in objective.predicted_columns(lm)]
    if threshold is not None and (len(added_columns) < 4 or lm.settings.label_kind != "classes"):
        raise TriviumError("a threshold is for one class per text: leave it out.")
    report, columns, num_rows, num_below = ReadReport(), dict.fromkeys(()), 0, 0

    def read_records(report: ReadReport | None = None) -> Iterator[Record]:
        """Yield the records of all input files.

        Raises DataError for files with one word per line.
        """
        schema = objective.input_schema
        for record in objective.records(paths, options):
            if not isinstance(record, Record):
                raise DataError(
                    f"{record.where}: columns cannot be added to a file with one word per line. "
                    'Give the sentences as JSON lines: {"words": [...]}.'
                )
            schema.resolve(record, report)
            yield record

    def predict_rows() -> Iterator[Row]:
        """Yield the records with the predicted columns added. The model predicts in batches."""
        nonlocal num_below
        rest, done = read_records(), 0
        while batch := list(islice(rest, _ROWS)):
            answers = objective.predict(lm, [objective.read_unlabelled(one, lm) for one in batch])
            for record, answer in zip(batch, answers, strict=True):
                values = objective.to_columns(
                    answer, in_cell=format_line in (_format_csv_line, _format_tsv_line)
                )
                if threshold is not None and values[1] < threshold:
                    values, num_below = (below, *values[1:]), num_below + 1
                yield {**record, **dict(zip(added_columns, values, strict=True))}
            done += len(batch)
            if progress:
                progress(done, num_rows)

    for record in read_records(report):
        num_rows += 1
        objective.read_unlabelled(record, lm)
        _check_writable(record, added_columns, format_line)
        columns |= dict.fromkeys(record)
    columns |= dict.fromkeys(added_columns)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(out) as file:
        if format_line is None:
            _write_parquet(file, predict_rows(), [*columns], paths)
        else:
            header = [dict(zip(columns, columns))] if format_line is not _format_json_line else []
            rows = chain(header, predict_rows())
            file.writelines(format_line(row, [*columns]).encode() for row in rows)
    return PredictionSummary(num_rows, num_below, report.lines)


def _choose_line_formatter(out: Path, paths: Sequence[str]) -> Line | None:
    """Return the function that formats a row as a line of the output file; None for Parquet.

    Raises DataError if an input can be read only once, if the format of `out` is not supported, or
    if `out` is one of the inputs.
    """
    if out.suffix.lower() not in FORMATS:
        raise DataError(f"{out} does not end in {', '.join(FORMATS)}, the formats of tables.")
    if any(name == STDIN or Path(name).is_fifo() for name in paths):
        raise DataError("standard input and pipes can be read only once: save them as a file.")
    if out.exists() and any(os.path.exists(path) and out.samefile(path) for path in paths):
        raise DataError(f"{out} is a file that is read: write another one.")
    if out.suffix.lower() == ".parquet":
        with require_extra("Writing Parquet", "parquet"):
            import pyarrow  # noqa: F401
    return _LINES.get(out.suffix.lower())


def _check_writable(record: Record, added_columns: Sequence[str], format_line: Line | None) -> None:
    """Raise DataError if a record cannot be written, or already has a column to be added."""
    if taken := [name for name in added_columns if name in record]:
        raise DataError(
            f'{record.column_source} has a column "{taken[0]}" already. Choose other names with '
            "--prefix: --prefix model_ adds model_prediction, ..."
        )
    try:
        _ = format_line and format_line(record, [*record])
    except DataError as error:
        raise DataError(f"{record.where}: {error}") from error


def _format_csv_line(row: Row, columns: Sequence[str]) -> str:
    """Format a row as a line of CSV. Cells with commas, quotes or line breaks are quoted."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(
        [_format_cell(row.get(name)) for name in columns]
    )
    return text.getvalue()


def _format_tsv_line(row: Row, columns: Sequence[str]) -> str:
    """Format a row as a line of TSV. Raises DataError for tabs or line breaks in a cell."""
    cells = [_format_cell(row.get(name)) for name in columns]
    if any(mark in cell for mark in "\t\n\r" for cell in cells):
        raise DataError("a cell has a tab or a line break, which .tsv cannot hold: write .csv.")
    return "\t".join(cells) + "\n"


def _format_json_line(row: Row, _: Sequence[str]) -> str:
    """Format a row as a line of JSON. Non-finite numbers become null."""
    return json.dumps(nan_to_none(row), ensure_ascii=False, default=_to_json_value) + "\n"


_LINES: dict[str, Line] = {
    ".csv": _format_csv_line,
    ".tsv": _format_tsv_line,
    ".jsonl": _format_json_line,
}
FORMATS = (*_LINES, ".parquet")
"""The file name extensions that `predict` can write."""


def _format_cell(value: Any) -> str:
    """Format a value as the text of a table cell.

    Strings are unchanged, None becomes an empty cell, and lists and objects become JSON.
    """
    if value is None or isinstance(value, str):
        return value or ""
    text = json.dumps(value, ensure_ascii=False, default=_to_json_value)
    return text.strip('"')  # JSON quotes dates


def _to_json_value(value: Any) -> str:
    """Convert a value that JSON does not support, such as a date or a decimal, to a string.

    Raises DataError for bytes.
    """
    if isinstance(value, bytes):
        raise DataError("a column of bytes can be written as .parquet only.")
    return str(value)


def _write_parquet(
    file: BinaryIO, rows: Iterator[Row], columns: Sequence[str], input_paths: Sequence[str]
) -> None:
    """Write rows to a Parquet file.

    Columns that come from Parquet input files keep their types. The types of all other columns are
    inferred from the first rows.
    """
    import pyarrow
    from pyarrow import parquet

    stored = [one for one in input_paths if file_format(one) == ".parquet" and os.path.isfile(one)]
    kept = {field.name: field for one in stored for field in parquet.read_schema(one)}
    none, string = pyarrow.null(), pyarrow.string()
    known = {none: string, pyarrow.list_(none): pyarrow.list_(string)}  # types of empty columns
    batch = list(islice(rows, _ROW_GROUP))
    try:
        schema = pyarrow.table({name: [row.get(name) for row in batch] for name in columns}).schema
        typed = (one.with_type(known.get(one.type, one.type)) for one in schema)
        schema = pyarrow.schema([kept.get(one.name, one) for one in typed])
        with parquet.ParquetWriter(file, schema) as writer:
            while batch:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema))
                batch = list(islice(rows, _ROW_GROUP))
    except pyarrow.ArrowException as error:
        raise DataError(f"this cannot be written as .parquet: {error}. Write .jsonl.") from error
