"""Sources with their targets, for translation, summarisation and any text-to-text task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from trivium.data.labelled.files import Paths, example_files, layout_of, numbered_lines
from trivium.data.labelled.records import (
    RECORD_SUFFIXES,
    FieldNames,
    Record,
    as_text,
    field_text,
    field_value,
    no_such_field,
    read_records,
    table_rows,
    usual_field,
    usual_pair,
)
from trivium.errors import DataError

SOURCES_AND_TARGETS = (
    ("source", "target"),
    ("source", "targets"),
    ("src", "tgt"),
    ("document", "summary"),
    ("article", "summary"),
    ("article", "highlights"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("question", "answer"),
    ("input", "output"),
    ("prompt", "response"),
    ("prompt", "completion"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class PairSource:
    """Where pairs come from: paths, the prefix before every source, the fields of records.

    The fields are found by the usual names unless given; "translation.en" is a field in another.
    """

    paths: Paths
    prefix: str = ""
    source_field: str | None = None
    target_field: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SourceTarget:
    """A source, which begins with the prefix, and its targets: the first is trained on."""

    source: str
    targets: tuple[str, ...]
    where: str
    prefix: str = ""

    @property
    def group(self) -> str:
        """What keeps examples on one side of a division: the source without its prefix."""
        return self.source.removeprefix(self.prefix)


def read_pairs(sources: Sequence[PairSource]) -> list[SourceTarget]:
    """The pairs of several tasks, one task after the other.

    The paths of a source are

    - two plain files, such as `corpus.en corpus.fr`, whose lines belong together; lines that are
      blank in both are passed over;
    - `.tsv`, or a plain file alone: source, target and what else there is, parted by tabs; with a
      header where fields are named or the first row holds usual names;
    - `.jsonl`, `.json`, `.csv`: a record a pair. A target may be a list: several references.

    Raises DataError with file and line where lines are missing or blank, and where a field is.
    """
    if not sources:
        raise DataError("No pairs were given. Name two aligned files, or .tsv or .jsonl files.")
    return [pair for source in sources for pair in _read_source(source)]


def _read_source(source: PairSource) -> Iterator[SourceTarget]:
    files = example_files(source.paths, RECORD_SUFFIXES)
    plain = [file for file in files if layout_of(file) not in RECORD_SUFFIXES]
    names = FieldNames(lambda record: _find_names(record, source))
    if len(plain) > 1:
        if len(files) != 2:
            raise DataError(
                f"{', '.join(files)}: which lines belong together? Give two plain files, source "
                "and target, a task; or .tsv or .jsonl files."
            )
        found = _aligned(files[0], files[1])
        yield from (_pair(text, (target,), where, source) for text, target, where in found)
        return
    for file in files:
        if layout_of(file) in (".jsonl", ".json", ".csv") or _has_header(file, source):
            for record in read_records(file):
                yield _of_record(record, *names.of(record), source)
        else:
            for text, target, where in _tab_separated(file):
                yield _pair(text, (target,), where, source)


def _pair(text: str, targets: tuple[str, ...], where: str, source: PairSource) -> SourceTarget:
    return SourceTarget(source.prefix + text, targets, where, source.prefix)


def _aligned(first: str, second: str) -> Iterator[tuple[str, str, str]]:
    """Source, target and place of every line of two files."""
    one, other = _lines(first), _lines(second)
    both = list(enumerate(zip(one, other), start=1))
    blank = next((n for n, (a, b) in both if bool(a.strip()) != bool(b.strip())), 0)
    hint = ""
    if blank:
        without, against = (second, first) if one[blank - 1].strip() else (first, second)
        hint = f"{without}, line {blank} is blank while {against}, line {blank} is not."
    if len(one) != len(other):
        raise DataError(
            f"{first} has {len(one)} lines and {second} has {len(other)}; line by line they are "
            f"source and target. {hint}".rstrip()
        )
    if blank:
        raise DataError(f"{hint} Fill it in, or remove the line from both.")
    for number, (source, target) in both:
        if source.strip():
            yield source, target, f"{first}, line {number}"


def _lines(name: str) -> list[str]:
    """The lines of a file without the blank ones at its end."""
    lines = [line for _, line in numbered_lines(name)]
    while not lines[-1].strip():
        lines.pop()
    return lines


def _has_header(file: str, source: PairSource) -> bool:
    """Whether a tab-separated file begins with the names of its columns."""
    if layout_of(file) != ".tsv":
        return False
    if source.source_field is not None or source.target_field is not None:
        return True
    _, cells = next(table_rows(file, tabs=True))
    record = Record({cell.strip(): "" for cell in cells}, file)
    return usual_pair(record, SOURCES_AND_TARGETS) is not None


def _tab_separated(file: str) -> Iterator[tuple[str, str, str]]:
    for number, cells in table_rows(file, tabs=True):
        where = f"{file}, line {number}"
        if len(cells) < 2:
            raise DataError(
                f'{where} has no tab between source and target: "{cells[0][:60]}". Give lines of '
                "source, tab, target; or two aligned files."
            )
        yield (
            as_text(cells[0], f"The source of {where}"),
            as_text(cells[1], f"The target of {where}"),
            where,
        )


def _find_names(record: Record, source: PairSource) -> tuple[str, str]:
    """The fields of source and target; the one that is not given by the usual pairs."""
    first, second = source.source_field, source.target_field
    if first is None and second is None:
        pair = usual_pair(record, SOURCES_AND_TARGETS)
    elif first is None:
        found = usual_field(record, (name for name, _ in SOURCES_AND_TARGETS))
        pair = None if found is None or second is None else (found, second)
    elif second is None:
        found = usual_field(record, (name for _, name in SOURCES_AND_TARGETS))
        pair = None if found is None else (first, found)
    else:
        pair = first, second
    if pair is None:
        known = [f"{name} with {target}" for name, target in SOURCES_AND_TARGETS]
        raise no_such_field(record, "source and target", known, ("source_field", "target_field"))
    return pair


def _of_record(
    record: Record, source_field: str, target_field: str, source: PairSource
) -> SourceTarget:
    text = field_text(record, source_field, "source_field")
    targets = field_value(record, target_field, "target_field")
    what = f'The field "{target_field}" of {record.where}'
    if not isinstance(targets, list):
        targets = [targets]
    elif not targets:
        raise DataError(f"{what} is an empty list. Give a target, or remove the example.")
    # The number of a class is written as any other answer is.
    texts = (str(one) if isinstance(one, int | float) else as_text(one, what) for one in targets)
    return _pair(text, tuple(texts), record.where, source)
