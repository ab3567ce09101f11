"""Texts and pairs of texts with a label, for classification and regression."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator

from trivium.data.labelled.files import (
    Paths,
    as_paths,
    example_files,
    file_text,
    files_under,
)
from trivium.data.labelled.labels import (
    Cell,
    Label,
    LabelKind,
    as_label,
    find_kind,
    known_kind,
    natural_order,
)
from trivium.data.labelled.records import (
    RECORD_SUFFIXES,
    FieldNames,
    Record,
    field_text,
    field_value,
    find_field,
    has_field,
    no_such_field,
    read_records,
    usual_field,
    usual_pair,
)
from trivium.errors import DataError

PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text", "pair"),
    ("text", "text_pair"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("question", "passage"),
    ("question", "sentence"),
    ("query", "passage"),
)
TEXTS = ("text", "sentence", "review", "content", "document")
LABELS = ("label", "labels", "score", "class", "category", "intent", "sentiment")
# The texts without a label that come with IMDB.
UNLABELLED = "unsup"


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, the second one of a pair, and a class, several classes, a number or no label."""

    text: str
    pair: str | None
    label: Label | None
    where: str

    @property
    def group(self) -> str:
        """What keeps examples on one side of a division: the (first) text."""
        return self.text


def read_texts(
    paths: Paths,
    *,
    text_field: str | None = None,
    pair_field: str | None = None,
    label_field: str | None = None,
    kind: LabelKind | None = None,
    label_separator: str = ",",
    require_labels: bool = True,
) -> list[LabelledText]:
    """The labelled texts of files (JSON lines, CSV, TSV) and of folders of classes.

    Fields not named are found by the usual names, `PAIRS` before `TEXTS`, and `LABELS`; where
    `text_field` is given, there is a pair only if `pair_field` is given too. In a folder without
    such files every sub-folder is a class and every `.txt` in it a text, but for `unsup`, which
    IMDB has for texts without a class; a folder of `.txt` files is itself a class.

    `kind` of the labels is found by `find_kind` unless given; give that of the training data when
    reading any other. `label_separator` parts several classes in a cell of a table. Without
    `require_labels`, examples that have none get None.

    Raises DataError, with file and line, at a missing or blank text or label, at labels of
    different kinds and at pairs mixed with single texts.
    """
    if kind is not None:
        known_kind(kind)
    raw: list[tuple[str, str | None, object, str]] = []
    names = FieldNames(
        lambda record: _find_names(record, text_field, pair_field, label_field, require_labels)
    )
    given = as_paths(paths)
    folders = [p for p in given if os.path.isdir(p) and not files_under(p, RECORD_SUFFIXES)]
    for folder in dict.fromkeys(folders):
        raw.extend(_read_folder(folder))
    others = [path for path in given if path not in folders]
    for file in example_files(others, RECORD_SUFFIXES) if others else ():
        raw.extend(_read_file(file, names, require_labels or kind == "multi-label"))
    _check_pairs(raw)
    kind = kind or find_kind([(label, where) for *_, label, where in raw if label is not None])
    return [
        LabelledText(
            text,
            pair,
            None if label is None else as_label(label, kind, where, label_separator),
            where,
        )
        for text, pair, label, where in raw
    ]


def label_kind(examples: Iterable[LabelledText]) -> LabelKind:
    """The kind of the labels. Raises DataError where there is none or they are of two kinds."""
    kinds: dict[LabelKind, str] = {}
    for example in examples:
        if isinstance(example.label, tuple):
            kinds.setdefault("multi-label", example.where)
        elif isinstance(example.label, str):
            kinds.setdefault("classes", example.where)
        elif example.label is not None:
            kinds.setdefault("numbers", example.where)
    if not kinds:
        raise DataError("No example has a label.")
    if len(kinds) > 1:
        found = ", ".join(f"{kind} ({where})" for kind, where in kinds.items())
        raise DataError(f"The labels are of different kinds: {found}. Read them with one kind.")
    return next(iter(kinds))


def label_names(examples: Iterable[LabelledText]) -> tuple[str, ...]:
    """The different classes, in natural order. Raises DataError where labels are numbers."""
    names: set[str] = set()
    for example in examples:
        if isinstance(example.label, tuple):
            names.update(example.label)
        elif isinstance(example.label, str):
            names.add(example.label)
        elif example.label is not None:
            raise DataError(f"The label of {example.where} is a number, which names no class.")
    return natural_order(names)


def _find_names(
    record: Record,
    text_field: str | None,
    pair_field: str | None,
    label_field: str | None,
    require_labels: bool,
) -> tuple[str, str | None, str | None]:
    """The fields of the text, the pair and the label."""
    label = label_field
    if require_labels:
        label = find_field(record, "label", LABELS, "label_field", label_field)
    elif label is None:
        label = usual_field(record, LABELS)
    elif not has_field(record, label):
        label = None
    if text_field is not None:
        return text_field, pair_field, label
    pair = usual_pair(record, PAIRS)
    if pair is not None and pair_field in (None, pair[1]):
        return *pair, label
    text = usual_field(record, TEXTS)
    if text is None:
        known = (*TEXTS, *(f"{first} with {second}" for first, second in PAIRS))
        raise no_such_field(record, "text", known, ("text_field", "pair_field"))
    return text, pair_field, label


def _read_file(
    file: str, names: FieldNames[tuple[str, str | None, str | None]], require_labels: bool
) -> Iterator[tuple[str, str | None, object, str]]:
    """Text, pair, raw label and place of every record."""
    for record in read_records(file):
        text, pair, label = names.of(record)
        yield (
            field_text(record, text, "text_field"),
            None if pair is None else field_text(record, pair, "pair_field"),
            None if label is None else _raw_label(record, label, require_labels),
            record.where,
        )


def _raw_label(record: Record, name: str, required: bool) -> object:
    label = field_value(record, name, "label_field")
    if record.of_table:
        return Cell(label) if required or label.strip() else None
    if label is None and required:
        raise DataError(
            f"{record.where} has no label: its field {name} is null. Fill it in, or remove the "
            "example."
        )
    return label


def _read_folder(folder: str) -> Iterator[tuple[str, str | None, object, str]]:
    """The texts of a folder of classes, or of one class."""
    below = [(os.path.relpath(file, folder), file) for file in files_under(folder, (".txt",))]
    deep = [place for place, _ in below if place.count(os.sep) > 1]
    if deep:
        raise DataError(
            f"{os.path.join(folder, deep[0])} lies more than one folder below {folder}. Name the "
            "folder whose sub-folders are the classes."
        )
    classes = [(os.path.dirname(place), file) for place, file in below if os.sep in place]
    if not classes:
        classes = [(os.path.basename(os.path.abspath(folder)), file) for _, file in below]
    classes = [(label, file) for label, file in classes if label != UNLABELLED]
    if not classes:
        raise DataError(
            f"The folder {folder} has no examples. It holds files {' '.join(RECORD_SUFFIXES)}, or "
            "a sub-folder for each class with one .txt for each text."
        )
    for label, file in classes:
        yield file_text(file).strip(), None, label, file


def _check_pairs(raw: list[tuple[str, str | None, object, str]]) -> None:
    """Raise DataError where some examples are pairs and others are not."""
    with_pair = next((where for _, pair, _, where in raw if pair is not None), None)
    without = next((where for _, pair, _, where in raw if pair is None), None)
    if with_pair is not None and without is not None:
        raise DataError(
            f"{without} is one text while {with_pair} is a pair. Give all a second text, or name "
            "the only one with text_field."
        )
