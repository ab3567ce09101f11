"""Readers of text, records and examples of tasks."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import zstandard
from readers import MESSAGES, TEXT, reader

from trivium.data import ReadOptions, read_documents, read_records
from trivium.objectives import OBJECTIVES

_CONLLU = """# text = Ada wrote it .
1\tAda\tAda\tPROPN\tNNP\t_\t2\tnsubj\t_\t_
2-3\twrote it\t_\t_\t_\t_\t_\t_\t_\t_
2\twrote\twrite\tVERB\tVBD\t_\t0\troot\t_\t_
3\tit\tit\tPRON\tPRP\t_\t2\tobj\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def _json_lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _csv(*rows: Iterable[str]) -> bytes:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().encode()


def _parquet(*rows: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([*rows]), file, compression="none")
    return file.getvalue()


_RECORDS: list[dict[str, Any]] = [
    {"text": "A good film.", "label": "pos", "n": 1, "translation": {"en": "a", "fr": "b"}},
    {"text": "A caf\u00e9, 北京 \U0001f600\n", "label": "neg", "n": 2.5, "translation": {}},
    {"text": "Dull.", "label": "pos", "n": None, "translation": {"en": "", "fr": "d"}},
]
_TABLE = _csv(["text", "label"], ["A good, long film.", "pos"], ['He said "no".\nThen', "neg"])


def _each_alone(read: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Read every file of a folder by itself; the first error ends it."""

    def read_all(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            read(path)

    return read_all


@reader(
    "text",
    lambda: {
        "a.txt": TEXT.encode(),
        "b.txt.gz": gzip.compress(TEXT.encode(), mtime=0),
        "c.txt.xz": lzma.compress(TEXT.encode()),
        "d.txt.zst": zstandard.compress(TEXT.encode()),
    },
)
def _read_text(folder: Path) -> None:
    for separator in ("blank", "line", "file", "nd"):
        for path in sorted(folder.iterdir()):
            for document in read_documents(path, ReadOptions(separator)):
                document.text.encode()
    list(read_documents(folder, ReadOptions(errors="replace")))


@reader(
    "records",
    lambda: {
        "a.jsonl": _json_lines(*_RECORDS),
        "b.json": json.dumps(_RECORDS).encode(),
        "c.csv": _TABLE,
        "d.tsv": b"text\tlabel\nA good film.\tpos\nDull.\tneg\n",
        "e.parquet": _parquet(*_RECORDS),
        "f.jsonl.gz": gzip.compress(_json_lines(*_RECORDS), mtime=0),
        "g.csv.zst": zstandard.compress(_TABLE),
    },
)
def _read_records(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        for record in read_records(path):
            record.find(("text",))
        for document in read_documents(path):
            document.text.encode()
    list(read_records(folder, errors="replace"))


def _examples(task: str, *paths: Path, **keys: Any) -> None:
    """Read the examples of a task, with what training does to them before it encodes them."""
    objective: Any = OBJECTIVES[task].parse({"kind": task, **keys})
    examples = list(objective.read([str(path) for path in paths]))
    if examples and task in ("classification", "tagging"):
        objective.label_names(examples)
    for one in examples:
        one.group.encode()
    for text in objective.source_texts(examples):
        text.encode()


@reader(
    "tagging",
    lambda: {
        "a.conllu": _CONLLU.encode(),
        "b.txt": b"-DOCSTART- O\n\nAda NNP B-PER\nwrote VBD O\n. . O\n\nYes UH O\n",
        "c.iob2": b"# a comment\nAda\tI-PER\nwrote\tO\n",
        "d.jsonl": _json_lines({"tokens": ["Ada", "wrote"], "ner_tags": ["B-PER", "O"]}),
    },
)
@_each_alone
def _read_tagging(path: Path) -> None:
    _examples("tagging", path)


_CONTEXT = "Ada Lovelace wrote the first program in 1843."
_QUESTIONS = [
    {
        "id": "1",
        "question": "Who wrote it?",
        "is_impossible": False,
        "answers": [{"text": "Ada Lovelace", "answer_start": 0}],
    },
    {"id": "2", "question": "Why?", "is_impossible": True, "answers": []},
]
_SQUAD = {
    "version": "v2.0",
    "data": [{"title": "Ada", "paragraphs": [{"context": _CONTEXT, "qas": _QUESTIONS}]}],
}
_QUESTION = {"id": "7", "question": "When?", "context": "In 1843."}
_ANSWERS = {"text": ["1843"], "answer_start": [3]}


@reader(
    "questions",
    lambda: {
        "a.json": json.dumps(_SQUAD).encode(),
        "b.jsonl": _json_lines(
            {**_QUESTION, "answers": _ANSWERS},
            {**_QUESTION, "answers": ["1843"]},
            {**_QUESTION, "answers": [{"text": "1843", "answer_start": 3}]},
        ),
        "c.csv": b"question,context,answer,start\nWhen?,In 1843.,1843,3\n",
        "d.parquet": _parquet({**_QUESTION, "answers": _ANSWERS}),
    },
)
@_each_alone
def _read_questions(path: Path) -> None:
    _examples("qa", path)


@reader(
    "chat",
    lambda: {
        "a.jsonl": _json_lines({"messages": MESSAGES}, {"messages": MESSAGES[1:], "system": "!"}),
        "b.jsonl": _json_lines(
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}
        ),
        "c.jsonl": _json_lines({"instruction": "Add", "input": "1, 2", "output": "3"}),
        "d.csv": _csv(["prompt", "response"], ["How?", "So."]),
        "e.parquet": _parquet({"messages": MESSAGES}),
    },
)
@_each_alone
def _read_chat(path: Path) -> None:
    _examples("chat", path)


@reader(
    "pairs",
    lambda: {
        "a.en": b"A cat.\nA dog.\n\nYes.\n",
        "a.fr": "Un chat.\nUn ch\u00eene.\n\nOui.\n".encode(),
        "b.tsv": b"A cat.\tUn chat.\nYes.\tOui.\n",
        "c.jsonl": _json_lines({"translation": {"en": "Yes.", "fr": "Oui."}}),
        "d.csv": _csv(["en", "fr"], ["Yes.", "Oui."]),
        "e.jsonl": _json_lines({"source": "a", "target": ["b", "c"]}),
    },
)
def _read_pairs(folder: Path) -> None:
    _examples("translation", folder / "a.en", folder / "a.fr")
    _examples("translation", folder / "b.tsv")
    keys = {"source_field": "translation.en", "target_field": "translation.fr"}
    _examples("translation", folder / "c.jsonl", **keys)
    _examples("summarization", folder / "d.csv", source_field=0, target_field=1, reverse=True)
    _examples("translation", folder / "e.jsonl")


@reader(
    "classes",
    lambda: {
        "pos/1.txt": b"A good film.",
        "pos/2.txt": "caf\u00e9 \U0001f600".encode(),
        "neg/1.txt": b"Dull.\n",
    },
)
def _read_class_folder(folder: Path) -> None:
    _examples("classification", folder)


@reader(
    "labels",
    lambda: {
        "a.jsonl": _json_lines(*_RECORDS),
        "b.csv": _TABLE,
        "c.jsonl": _json_lines({"text": "a", "label": ["x", "y"]}, {"text": "b", "label": ["x"]}),
        "d.tsv": b"premise\thypothesis\tlabel\na\tb\t1.5\nc\td\t2\n",
        "e.parquet": _parquet(*_RECORDS),
    },
)
@_each_alone
def _read_labels(path: Path) -> None:
    _examples("classification", path)
