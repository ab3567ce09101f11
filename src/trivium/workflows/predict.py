"""Predicting on tables: every row of a file, with the model's answer in columns of its own."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trivium.data.documents import ReadOptions
from trivium.data.records import ReadReport, Record, RecordOptions
from trivium.data.sources import Paths, file_format, missing_paths, path_names
from trivium.errors import DataError, RecipeError, TriviumError, importing_extra
from trivium.files import STDIN, finite, replace_file
from trivium.inference.text_model import TASK_OF_CAPABILITY
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.objectives import LabelledObjective
from trivium.remote import is_remote
from trivium.train.recipe_loading import Changes
from trivium.workflows.evaluate import Model, data_changes, objective_of, run_recipe, task_of

_ROWS = 256  # that the model answers at a time
_GROUP = 4096  # rows of a row group of Parquet
Row = dict[str, Any]


@dataclass(frozen=True)
class Predicted:
    """What `predict` wrote.

    Args:
        num_rows: the number of rows.
        num_below: the number of rows whose score was below the threshold.
        columns: lines on the columns that were read.
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
    errors: str = "strict",
    encoding: str = "utf-8",
    changes: Changes = (),
    device: str = "auto",
    progress: Callable[[int, int | None], None] | None = None,
) -> Predicted:
    """Write the records of files with the predictions of a model for each.

    The files are read twice: first to check every record, then for the model, some records at a
    time. All columns are kept, in their order and with their values. The columns prediction, score,
    runner_up and runner_up_score follow; a regression model has only a prediction. `out` appears
    when it is complete.

    Args:
        model: a run, a checkpoint, a saved model, a Hugging Face folder or name, or a
            `LanguageModel`.
        data: records as the task of the model reads them; they need no labels.
        out: the file to write: .csv, .tsv, .jsonl or .parquet.
        threshold: the score below which the prediction is `below`, for one class per text.
        below: the label of texts whose score is below the threshold.
        prefix: text before the names of the columns that are added.
        errors: "strict", or "replace" to read invalid bytes as U+FFFD.
        encoding: the encoding of text files. The output is UTF-8.
        changes: keys of the task's objective, such as ["objective.text_field=review"], and
            data.encoding and data.errors.
        device: the device that a model is loaded to, if it is not loaded yet.
        progress: called with the number of records that are done, and the number of all records,
            which is None while records are checked.

    Raises:
        DataError: a record cannot be read, its text is blank, or it does not fit the format of
            `out`.
        TriviumError: the task has no labels, or the threshold does not fit.
    """
    out, names = Path(out), path_names(data)
    _check_paths(names, out)
    _check_threshold(threshold, below)
    if out.suffix.lower() == ".parquet":
        with importing_extra("Writing Parquet", "parquet"):
            import pyarrow  # noqa: F401
    changes, options = _read_options(changes, errors, encoding)
    recipe = {} if isinstance(model, LanguageModel) else run_recipe(Path(model))
    lm = model if isinstance(model, LanguageModel) else load(model, device=device)
    objective = _objective(lm, recipe, changes)
    types = {prefix + name: kind for name, kind in objective.predicted_types(lm).items()}
    if threshold is not None and (str not in types.values() or len(types) < 4):
        raise TriviumError("a threshold is for one class per text: leave it out.")

    suffix = out.suffix.lower()
    line = _LINES.get(suffix)
    report, columns, total = ReadReport(), dict.fromkeys(()), 0
    for total, record in enumerate(_records(objective, names, options, report), start=1):
        objective.unlabelled(record, lm)
        _refuse_columns(record, types)
        columns |= dict.fromkeys(record)
        if line is not None:
            try:
                line(record, [*record])
            except DataError as error:
                raise DataError(f"{record.where}: {error}") from error
        if progress and not total % _ROWS:
            progress(total, None)
    num_below = 0

    def answered() -> Iterator[Row]:
        nonlocal num_below
        records, done = _records(objective, names, options, None), 0
        while batch := list(itertools.islice(records, _ROWS)):
            answers = objective.answers(lm, [objective.unlabelled(one, lm) for one in batch])
            for record, answer in zip(batch, answers, strict=True):
                values = objective.predicted(answer, in_cell=suffix in (".csv", ".tsv"))
                if threshold is not None and values[1] < threshold:
                    values, num_below = (below, *values[1:]), num_below + 1
                yield {**record, **dict(zip(types, values, strict=True))}
            done += len(batch)
            if progress:
                progress(done, total)

    schema = None
    if line is None:
        schema = _parquet_schema(names, _records(objective, names, options, None))
    out.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(out) as file:
        if line is None:
            _write_parquet(file, answered(), types, schema)
        else:
            header = dict(zip([*columns, *types], [*columns, *types]))
            rows = answered() if suffix == ".jsonl" else itertools.chain([header], answered())
            file.writelines(line(row, [*header]).encode() for row in rows)
    return Predicted(total, num_below, report.lines)


def _read_options(changes: Changes, errors: str, encoding: str) -> tuple[Changes, RecordOptions]:
    """Return the changes of the objective, and how files are read."""
    changes, keys = data_changes(changes)
    keys = {"errors": errors, "encoding": encoding, **keys}
    if others := keys.keys() - {"errors", "encoding"}:
        raise RecipeError(
            f"data.{min(others)} is not used by predict: every record is read, and columns are "
            "named by objective.KEY."
        )
    reading = ReadOptions(**keys)  # which checks them
    return changes, RecordOptions(errors=reading.errors, encoding=reading.encoding)


def _check_threshold(threshold: float | None, below: str | None) -> None:
    if (threshold is None) != (below is None):
        raise TriviumError("a threshold and the label below it belong together: give both or none.")
    if threshold is not None and not 0 < threshold <= 1:
        raise TriviumError(f"the threshold is a probability above 0 and up to 1, not {threshold}.")


def _refuse_columns(record: Record, types: dict[str, type]) -> None:
    """Raise DataError where a record has one of the columns that are added."""
    taken = [name for name in types if name in record]
    if taken:
        raise DataError(
            f'{record.table_or_row} has a column "{taken[0]}" already. Choose other names with '
            "--prefix: --prefix model_ adds model_prediction, ..."
        )


def _check_paths(names: Sequence[str], out: Path) -> None:
    """Raise DataError for files that cannot be read twice, or an output of no known format."""
    if out.suffix.lower() not in FORMATS or is_remote(str(out)):
        raise DataError(f"{out} is not the name of a local file that ends in {', '.join(FORMATS)}.")
    if missing := missing_paths(names):
        raise DataError("\n".join(missing))
    for name in names:
        if name == STDIN or (
            os.path.exists(name) and not (Path(name).is_file() or Path(name).is_dir())
        ):
            raise DataError(
                f"{name} can be read only once, and predict reads twice: save it as a file."
            )
        if out.exists() and os.path.exists(name) and os.path.samefile(name, out):
            raise DataError(f"{out} is a file that is read: write another one.")


def _objective(lm: LanguageModel, recipe: dict[str, Any], changes: Changes) -> LabelledObjective:
    """Return the objective of a model whose task has labels. Raises TriviumError for others."""
    task = task_of(lm)
    kinds = LabelledObjective.kinds
    known = [name for name, kind in kinds.items() if getattr(kind, "inputs", ())]
    if task not in known:
        raise TriviumError(
            f"predict is for models that were fine-tuned for {', '.join(known)}; this one is for "
            f"{task}, which has no labels."
        )
    capability = next((name for name, of in TASK_OF_CAPABILITY.items() if of == task), None)
    if capability is not None:
        lm.require(capability)
    return objective_of(lm, task, recipe, changes)


def _records(
    objective: LabelledObjective,
    names: Sequence[str],
    options: RecordOptions,
    report: ReadReport | None,
) -> Iterator[Record]:
    """Yield the records of files, with the columns of the fields that are not labels."""
    schema = objective.input_schema
    for record in objective.records(names, options):
        schema.resolve(record, report)
        yield record


def _csv_line(row: Row, columns: Sequence[str]) -> str:
    """Return cells with commas; those with commas, quotation marks or line breaks are quoted."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow([_cell(row.get(name)) for name in columns])
    return text.getvalue()


def _tsv_line(row: Row, columns: Sequence[str]) -> str:
    """Return cells with tabs. Raises DataError for a tab or a line break in a cell."""
    cells = [_cell(row.get(name)) for name in columns]
    if any(mark in cell for mark in "\t\n\r" for cell in cells):
        raise DataError("a cell has a tab or a line break, which .tsv cannot hold: write .csv.")
    return "\t".join(cells) + "\n"


def _json_line(row: Row, _: Sequence[str]) -> str:
    """Return a row as an object; numbers that are not finite, which JSON lacks, become null."""
    return json.dumps(finite(row), ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any) -> str:
    """Return a date, a decimal or another value of Parquet that JSON lacks as a string."""
    if isinstance(value, bytes):
        raise DataError("a column of bytes can be written as .parquet only.")
    return str(value)


def _cell(value: Any) -> str:
    """Return a value as the cell of a table: strings as they are, lists and objects as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    return _plain(value)


def _parquet_schema(names: Sequence[str], records: Iterator[Record]) -> Any:
    """Return the types of all columns: those of Parquet files, else what their values have."""
    import pyarrow.parquet

    if all(file_format(name) == ".parquet" and os.path.isfile(name) for name in names):
        schemas = [pyarrow.parquet.read_schema(name).remove_metadata() for name in names]
        return pyarrow.unify_schemas(schemas, promote_options="permissive")
    schema = pyarrow.schema([])
    while batch := list(itertools.islice(records, _GROUP)):
        columns = dict.fromkeys(name for record in batch for name in record)
        for name in columns:
            values = [record.get(name) for record in batch]
            try:
                own = pyarrow.schema([(name, pyarrow.array(values).type)])
                schema = pyarrow.unify_schemas([schema, own], promote_options="permissive")
            except pyarrow.ArrowException as error:
                raise DataError(
                    f'"{name}" has values of several types, which .parquet cannot hold: write '
                    f".jsonl or .csv ({error})."
                ) from error
    return schema


def _write_parquet(
    file: BinaryIO, rows: Iterable[Row], types: dict[str, type], schema: Any
) -> None:
    """Write rows in the types of a schema, and the added columns in theirs."""
    import pyarrow
    import pyarrow.parquet

    added = {str: pyarrow.string(), float: pyarrow.float64()}
    added[list] = pyarrow.list_(pyarrow.string())
    for name, kind in types.items():
        schema = schema.append(pyarrow.field(name, added[kind]))
    rows = iter(rows)
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while batch := list(itertools.islice(rows, _GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))


_LINES: dict[str, Callable[[Row, Sequence[str]], str]] = {
    ".csv": _csv_line,
    ".tsv": _tsv_line,
    ".jsonl": _json_line,
}
FORMATS = (*_LINES, ".parquet")
"""The endings of files that `predict` writes."""
