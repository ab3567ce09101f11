"""Questions with the text that answers them: SQuAD 1.1 and 2.0, JSON lines and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from trivium.data.labelled.files import Paths, example_files, file_text, layout_of
from trivium.data.labelled.records import (
    RECORD_SUFFIXES,
    FieldNames,
    Record,
    as_record,
    as_text,
    field_text,
    field_value,
    find_field,
    has_field,
    json_type,
    parse_json,
    read_records,
    usual_field,
)
from trivium.errors import DataError

QUESTIONS = ("question", "query")
CONTEXTS = ("context", "passage", "paragraph", "document")
ANSWERS = ("answers", "answer")
STARTS = ("answer_start", "start")


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A piece of the context and the character it starts at: context[start:][:len(text)]."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question on a context and its answers, none where the context does not answer it.

    `moved` answers were not where the file said and have been found elsewhere in the context.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    where: str
    moved: int = 0

    @property
    def group(self) -> str:
        """What keeps examples on one side of a division: the context."""
        return self.context


@dataclasses.dataclass(frozen=True, slots=True)
class _Names:
    question: str
    context: str
    answers: str | None
    start: str | None
    id: str | None


def read_questions(
    paths: Paths,
    *,
    question_field: str | None = None,
    context_field: str | None = None,
    answers_field: str | None = None,
    require_answers: bool = True,
) -> list[Question]:
    """The questions of SQuAD files (`.json`), JSON lines and tables.

    The answers of a record are a list of `{"text", "answer_start"}`, the lists
    `{"text": [...], "answer_start": [...]}`, or texts. No answers, or `is_impossible`, say that
    there is none. `plausible_answers` are not read. Without `require_answers` the field may be
    missing, as in questions yet to be answered.

    An answer without a start is put at its first occurrence; one that is not at its start at the
    nearest, and counted (`num_moved`).
    Raises DataError with file and line or question at an answer that is not in its context, a
    missing or blank part, and an id that two questions share.
    """
    names = FieldNames(
        lambda record: _find_names(
            record, question_field, context_field, answers_field, require_answers
        )
    )
    found: dict[str, Question] = {}
    for file in example_files(paths, RECORD_SUFFIXES):
        for question in _read_file(file, names, require_answers):
            other = found.setdefault(question.id, question)
            if other is not question:
                raise DataError(
                    f'The id "{question.id}" of {question.where} is also that of {other.where}. '
                    "Every question has an id of its own."
                )
    return list(found.values())


def num_moved(questions: Iterable[Question]) -> int:
    """How many answers were not where their file said."""
    return sum(question.moved for question in questions)


def _read_file(file: str, names: FieldNames[_Names], require_answers: bool) -> Iterator[Question]:
    if layout_of(file) == ".json":
        articles = _squad_articles(file)
        if articles is not None:
            for number, article in enumerate(articles, start=1):
                record = as_record(article, f"{file}, item {number} of its data")
                if "paragraphs" in record.fields:
                    yield from _of_article(file, record, require_answers)
                else:
                    yield _of_record(record, names.of(record))
            return
    for record in read_records(file):
        yield _of_record(record, names.of(record))


def _squad_articles(file: str) -> list[object] | None:
    """The list `data` of a SQuAD file; None where the file is a list or lines of records."""
    text = file_text(file)
    start = text.lstrip()
    if start.startswith("["):
        return None
    if not start.startswith("{"):
        raise DataError(f"{file} is neither SQuAD JSON nor records.")
    first = text.strip().split("\n", 1)
    if len(first) > 1 and first[0].endswith("}"):
        return None
    value = parse_json(text, file, file)
    if "data" not in value:
        return None
    if not isinstance(value["data"], list):
        raise DataError(f'"data" of {file} is {json_type(value["data"])}, not a list of articles.')
    return value["data"]


def _of_article(file: str, article: Record, require_answers: bool) -> Iterator[Question]:
    title = article.fields.get("title")
    where = f'{file}, article "{title}"' if isinstance(title, str) else article.where
    for number, one in enumerate(_listed(article, "paragraphs"), start=1):
        paragraph = as_record(one, f"{where}, paragraph {number}")
        context = field_text(paragraph, "context")
        for count, asked in enumerate(_listed(paragraph, "qas"), start=1):
            record = as_record(asked, f"{paragraph.where}, question {count}")
            identity = field_value(record, "id")
            if not isinstance(identity, str | int) or identity == "":
                raise DataError(f"The id of {record.where} is {json_type(identity)} or blank.")
            record = Record(record.fields, f"{file}, question {identity}")
            answers: Any = []
            if require_answers and not record.fields.get("is_impossible"):
                answers = field_value(record, "answers")
            question = field_value(record, "question")
            # Published files hold blank questions (CMRC 2018), and are scored with them.
            if not isinstance(question, str):
                raise DataError(f"The question of {record.where} is {json_type(question)}.")
            yield _question(str(identity), question, context, answers, None, record)


def _listed(record: Record, name: str) -> list[object]:
    value = field_value(record, name)
    if not isinstance(value, list):
        raise DataError(f'"{name}" of {record.where} is {json_type(value)}, not a list.')
    return value


def _find_names(
    record: Record,
    question: str | None,
    context: str | None,
    answers: str | None,
    require_answers: bool,
) -> _Names:
    if require_answers and "is_impossible" not in record.fields:
        answers = find_field(record, "answers", ANSWERS, "answers_field", answers)
    elif answers is None:
        answers = usual_field(record, ANSWERS)
    elif not has_field(record, answers):
        answers = None
    return _Names(
        find_field(record, "question", QUESTIONS, "question_field", question),
        find_field(record, "context", CONTEXTS, "context_field", context),
        answers,
        usual_field(record, STARTS),
        usual_field(record, ["id"]),
    )


def _of_record(record: Record, names: _Names) -> Question:
    answers: Any = field_value(record, names.answers) if names.answers else None
    impossible = record.fields.get("is_impossible")
    if impossible is True or str(impossible).lower() == "true":
        answers = None
    identity = record.fields.get(names.id) if names.id else None
    return _question(
        record.where if identity in (None, "") else str(identity),
        field_text(record, names.question),
        field_text(record, names.context),
        answers,
        record.fields.get(names.start) if names.start else None,
        record,
    )


def _question(
    identity: str, question: str, context: str, answers: Any, start: Any, record: Record
) -> Question:
    placed: list[Answer] = []
    moved = 0
    for text, given in _texts_and_starts(answers, start, record.where):
        at, was_moved = _place(context, text, given, record.where)
        placed.append(Answer(text, at))
        moved += was_moved
    return Question(identity, question, context, tuple(placed), record.where, moved)


def _texts_and_starts(answers: Any, start: Any, where: str) -> Iterator[tuple[str, int | None]]:
    """The text and the start of every answer, in whichever way they are written."""
    if answers is None or answers == "":
        return
    if isinstance(answers, dict):
        texts = _as_list(field_value(Record(answers, f"The answers of {where}"), "text"))
        starts = _as_list(answers.get("answer_start", answers.get("start", [])))
        if starts and len(starts) != len(texts):
            raise DataError(f"The answers of {where} are {len(texts)} texts, {len(starts)} starts.")
        pairs = zip(texts, starts or [None] * len(texts))
    else:
        pairs = (
            (one.get("text"), one.get("answer_start", one.get("start")))
            if isinstance(one, dict)
            else (one, start)
            for one in _as_list(answers)
        )
    for text, given in pairs:
        yield as_text(text, f"An answer of {where}"), _as_start(given, where)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _as_start(start: Any, where: str) -> int | None:
    if start is None or start == "":
        return None
    try:
        return int(start)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"The start of an answer of {where} is {start}, not a number.") from error


def _place(context: str, text: str, start: int | None, where: str) -> tuple[int, bool]:
    """Where the answer starts, and whether the file said otherwise."""
    if start is not None and start >= 0 and context.startswith(text, start):
        return start, False
    found: int | None = None
    at = context.find(text)
    while at >= 0:
        if start is None:
            return at, False
        if found is None or abs(at - start) < abs(found - start):
            found = at
        at = context.find(text, at + 1)
    if found is None:
        raise DataError(
            f'The answer "{text}" of {where} is not in its context ("{context[:60]}..."). An '
            "answer is a piece of its context, letter by letter."
        )
    return found, True
