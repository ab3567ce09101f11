"""Examples to ask a model about: what is read, what may be said, what is right.

The layout of a file is told from the fields of its first record:

| fields | kind |
|---|---|
| `sentence_good`, `sentence_bad` | minimal pair (BLiMP) |
| `goal`, `sol1`, `sol2`, `label` | choice (PIQA) |
| `premise`, `choice1`, `choice2`, `question`, `label` | choice (COPA, XCOPA) |
| `context`, `ctx`, `question`, `query` or `goal`, a list `choices`, `options` or `endings`, \
`label` or `answer` | choice |
| `text`, `label` | classification |
| `premise`, `hypothesis`, `label` | classification of a pair |
| `question`, `answer` | free answer |
| `source`, `target` | free answer |
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trivium.errors import DataError
from trivium.evaluate.records import Record, read_records

_LISTS = ("choices", "options", "endings")
_STEMS = ("context", "ctx", "question", "query", "prompt", "goal", "premise")
_RIGHT = ("label", "answer", "gold", "answerKey")
_LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to ask.

    Args:
        fields: what a template may name.
        options: what may be said; empty for a free answer.
        answer: what is right; one of the options where there are some.
        where: "FILE, line N".
        groups: names by which results are told apart, such as BLiMP's `UID`.
    """

    fields: Mapping[str, str]
    options: tuple[str, ...]
    answer: str
    where: str
    groups: Mapping[str, str]

    @property
    def index(self) -> int:
        """Which of the options is right."""
        return self.options.index(self.answer)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the records of a file are read, and what is asked of them unless told otherwise."""

    kind: str
    template: str
    read: Callable[[Record], Example]


def read_examples(
    path: str | Path, *, options: Sequence[str] = (), layout: Layout | None = None
) -> tuple[Layout, list[Example]]:
    """The layout of a JSON lines file and its examples.

    Args:
        path: the file, also compressed.
        options: the words for the labels of a classification, in the order of label 0, 1, ...;
            where labels are words, which of them may be said. None: the labels of the file, sorted.
        layout: that of another file, which this one must follow.

    Raises:
        DataError: an unknown layout, a record that lacks a field, a label that is no option.
    """
    records = list(read_records(path))
    if not records:
        raise DataError(f"{path}: there is no example in it.")
    layout = layout or _layout(records, tuple(options))
    return layout, [layout.read(record) for record in records]


def kind_of(path: str | Path) -> str | None:
    """The kind of examples a JSON lines file holds, told from its first record; None: unknown.

    Raises:
        DataError: the file cannot be read.
    """
    first = next(read_records(path), None)
    if first is None:
        raise DataError(f"{path}: there is no example in it.")
    return _kind(first)


def _kind(record: Record) -> str | None:
    fields = record.fields.keys()
    if {"sentence_good", "sentence_bad"} <= fields:
        return "minimal-pairs"
    if {"goal", "sol1", "sol2"} <= fields or {"premise", "choice1", "choice2"} <= fields:
        return "choice"
    if any(isinstance(record.fields.get(name), list | dict) for name in _LISTS):
        return "choice"
    if {"text", "label"} <= fields or {"premise", "hypothesis", "label"} <= fields:
        return "classification"
    if {"question", "answer"} <= fields or {"source", "target"} <= fields:
        return "answer"
    return None


def _layout(records: Sequence[Record], options: tuple[str, ...]) -> Layout:
    first = records[0]
    fields, kind = first.fields, _kind(first)
    if kind == "minimal-pairs":
        return Layout(kind, "{answer}", _minimal_pair)
    if kind == "choice":
        if "sol1" in fields:
            return Layout(kind, "Question: {goal}\nAnswer: {answer}", _physical)
        if "choice1" in fields:
            return Layout(kind, "{stem}{connector}{answer}", _cause_or_effect)
        stem = next((name for name in _STEMS if name in fields), None)
        asks = stem in ("question", "query", "goal", "prompt")
        plain = f"{{{stem}}} {{answer}}" if stem else "{answer}"
        return Layout(kind, f"Question: {{{stem}}}\nAnswer: {{answer}}" if asks else plain, _listed)
    if kind == "classification":
        words = _label_words(records, options)
        template = "{text}\nLabel: {answer}"
        if "text" not in fields:
            template = "Premise: {premise}\nHypothesis: {hypothesis}\nLabel: {answer}"
        return Layout(kind, template, lambda record: _labelled(record, words))
    if kind == "answer":
        if "question" in fields:
            return Layout(
                kind,
                "Question: {question}\nAnswer: {answer}",
                lambda record: _free(record, "answer"),
            )
        return Layout(
            kind, "Input: {source}\nOutput: {answer}", lambda record: _free(record, "target")
        )
    known = ", ".join(fields) or "none"
    raise DataError(
        f"{first.where}: no known layout has the fields {known}. Known are sentence_good and "
        "sentence_bad; goal, sol1 and sol2; premise, choice1 and choice2; a question or context "
        "with a list of choices; text and label; question and answer; source and target."
    )


def _minimal_pair(record: Record) -> Example:
    good, bad = record.text("sentence_good"), record.text("sentence_bad")
    names = ("field", "linguistics_term", "UID")
    groups = {name: str(record.fields[name]) for name in names if record.fields.get(name)}
    return Example({}, (good, bad), good, record.where, groups)


def _physical(record: Record) -> Example:
    options = record.text("sol1"), record.text("sol2")
    return _choice(record, {}, options, record.index("label", 2))


def _cause_or_effect(record: Record) -> Example:
    """COPA as lm-evaluation-harness puts it: "PREMISE because OPTION", "PREMISE therefore OPTION".

    The premise loses its full stop, the option its capital; between Chinese words stands no space.
    """
    question, premise = record.text("question"), record.text("premise").strip()
    if question not in ("cause", "effect"):
        raise DataError(
            f"{record.where}: the field 'question' is {question!r}, but must be cause or effect."
        )
    options = tuple(_small(record.text(name).strip()) for name in ("choice1", "choice2"))
    chinese = any("\u4e00" <= character <= "\u9fff" for character in premise)
    if chinese:
        connector = "\uff0c" + {"cause": "\u56e0\u4e3a", "effect": "\u6240\u4ee5"}[question]
    else:
        connector = {"cause": " because ", "effect": " therefore "}[question]
    ends = premise and unicodedata.category(premise[-1]).startswith("P")
    stem = premise[:-1] if ends else premise
    fields = {"stem": stem, "connector": connector}
    return _choice(record, fields, options, record.index("label", 2), group="question")


def _listed(record: Record) -> Example:
    name = next(name for name in _LISTS if name in record.fields)
    given = record.value(name)
    letters: Sequence[str] = _LETTERS
    if isinstance(given, dict) and {"text", "label"} <= given.keys():
        letters, given = [str(letter) for letter in given["label"]], given["text"]
    if not isinstance(given, list) or len(given) < 2:
        raise DataError(f"{record.where}: the field {name!r} must be a list of 2 options or more.")
    options = tuple(str(option) for option in given)
    right = next((key for key in _RIGHT if record.fields.get(key) is not None), None)
    if right is None:
        raise DataError(f"{record.where}: no field says which option is right: add a `label`.")
    said = record.fields[right]
    if isinstance(said, str) and said in options:
        return _choice(record, {}, options, options.index(said))
    if isinstance(said, str) and said in letters[: len(options)]:
        return _choice(record, {}, options, letters.index(said))
    return _choice(record, {}, options, record.index(right, len(options)))


def _choice(
    record: Record,
    fields: Mapping[str, str],
    options: tuple[str, ...],
    right: int,
    *,
    group: str | None = None,
) -> Example:
    if len({*options}) < len(options):
        raise DataError(f"{record.where}: two options are the same.")
    groups = {group: record.text(group)} if group else {}
    return Example({**_texts(record), **fields}, options, options[right], record.where, groups)


def _labelled(record: Record, words: Mapping[str, str]) -> Example:
    label = record.text("label")
    if label not in words:
        raise DataError(
            f"{record.where}: the label {label!r} is none of the options {', '.join(words)}."
        )
    options = tuple(dict.fromkeys(words.values()))
    return Example(_texts(record), options, words[label], record.where, {})


def _label_words(records: Sequence[Record], options: tuple[str, ...]) -> dict[str, str]:
    """Label as written in the file -> the word for it."""
    found = {record.text("label") for record in records}
    if all(label.isdecimal() for label in found):
        count = max(map(int, found)) + 1
        if not options:
            return {str(label): str(label) for label in range(count)}
        if len(options) < count:
            raise DataError(
                f"{records[0].where}: labels go up to {count - 1}, but there are words for "
                f"{len(options)}: give {count} with --options."
            )
        return {str(label): word for label, word in enumerate(options)}
    return {label: label for label in options or sorted(found)}


def _free(record: Record, answer: str) -> Example:
    return Example(_texts(record), (), record.text(answer), record.where, {})


def _texts(record: Record) -> dict[str, str]:
    """The fields that a template can show."""
    return {
        name: str(value)
        for name, value in record.fields.items()
        if isinstance(value, str | int | float)
    }


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]
