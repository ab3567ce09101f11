"""Readers of text, records and examples of tasks."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow
import pyarrow.parquet
import zstandard
from damage import Files
from readers import MESSAGES, TEXT, made, reader, small_tokenizer

from trivium.data import ReadOptions, encode_tasks, read_documents, read_records
from trivium.data.checks import check_texts
from trivium.data.cleaning import CleanOptions, clean
from trivium.data.prepare import find_unfinished_tokenizer, partial_folder, prepare, prepare_part
from trivium.data.records import RecordOptions
from trivium.data.samples import sample_path
from trivium.data.splitting import CorpusOptions
from trivium.errors import DataError
from trivium.objectives import Objective
from trivium.objectives.classification import TextClassification
from trivium.objectives.example_checks import check_examples

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


@reader(
    "text",
    lambda: {
        "a.txt": TEXT.encode(),
        "b.txt.gz": gzip.compress(TEXT.encode(), mtime=0),
        "c.txt.xz": lzma.compress(TEXT.encode()),
        "d.txt.zst": zstandard.compress(TEXT.encode()),
        "e.txt.bz2": bz2.compress(TEXT.encode()),
    },
    alone=True,
)
def _read_text(folder: Path) -> None:
    list(read_documents(folder, ReadOptions(errors="replace")))
    for separator in ("blank", "line", "file", "nd"):
        for document in read_documents([*folder.iterdir()], ReadOptions(separator)):
            document.text.encode()


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
    alone=True,
)
def _read_records(folder: Path) -> None:
    list(read_records(folder, RecordOptions(errors="replace")))
    paths = [*folder.iterdir()]
    for record in read_records(paths):
        TextClassification().record_schema.fits([*record])
    for document in read_documents(paths):
        document.text.encode()


def _examples(task: str, folder: Path, **keys: Any) -> None:
    """Read the examples of a task, with what training does to them before it encodes them."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    _check(task, paths, **keys)


def _check(task: str, paths: Sequence[Path], **keys: Any) -> None:
    objective: Any = Objective.kinds[task].from_tree({"kind": task, **keys})
    examples = list(objective.read([str(path) for path in paths]))
    if examples and task in ("classification", "tagging"):
        objective.label_names(examples)
    for one in examples:
        one.group_key.encode()
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
    alone=True,
)
def _read_tagging(folder: Path) -> None:
    _examples("tagging", folder)


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
    alone=True,
)
def _read_questions(folder: Path) -> None:
    _examples("qa", folder)


@reader(
    "contrastive",
    lambda: {
        "a.txt": b"A heading\n\nThis line has eight words. It has two.\n",
        "b.jsonl": _json_lines({"anchor": "a", "positive": "b", "negative": "c"}),
        "c.csv": _csv(["question", "answer"], ["How?", "So."]),
        "d.json": json.dumps(_SQUAD).encode(),
    },
    alone=True,
)
def _read_contrastive(folder: Path) -> None:
    _examples("contrastive", folder)


@reader(
    "reward",
    lambda: {
        "a.jsonl": _json_lines(
            {"prompt": "Why?", "chosen": "So.", "rejected": "No.", "margin": "1"}
        ),
        "b.jsonl": _json_lines({"chosen": MESSAGES, "rejected": MESSAGES[:-1]}),
    },
    alone=True,
)
def _read_pairs(folder: Path) -> None:
    _examples("reward", folder)


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
    alone=True,
)
def _read_chat(folder: Path) -> None:
    _examples("chat", folder)


@reader(
    "pairs",
    lambda: {
        "a/a.en": b"A cat.\nA dog.\n\nYes.\n",
        "a/a.fr": "Un chat.\nUn ch\u00eene.\n\nOui.\n".encode(),
        "b.tsv": b"A cat.\tUn chat.\nYes.\tOui.\n",
        "c.jsonl": _json_lines({"translation": {"en": "Yes.", "fr": "Oui."}}),
        "d.csv": _csv(["en", "fr"], ["Yes.", "Oui."]),
        "e.jsonl": _json_lines({"source": "a", "target": ["b", "c"]}),
    },
    alone=True,
)
def _read_pairs(folder: Path) -> None:
    keys: dict[str, Any] = {}
    if (folder / "c.jsonl").exists():
        keys = {"source_field": "translation.en", "target_field": "translation.fr"}
    if (folder / "d.csv").exists():
        keys = {"source_field": 0, "target_field": 1, "reverse": True}
    _examples("summarization" if "reverse" in keys else "translation", folder, **keys)


@reader(
    "classes",
    lambda: {
        "pos/1.txt": b"A good film.",
        "pos/2.txt": "caf\u00e9 \U0001f600".encode(),
        "neg/1.txt": b"Dull.\n",
    },
)
def _read_class_folder(folder: Path) -> None:
    _check("classification", [folder])


@reader(
    "labels",
    lambda: {
        "a.jsonl": _json_lines(*_RECORDS),
        "b.csv": _TABLE,
        "c.jsonl": _json_lines({"text": "a", "label": ["x", "y"]}, {"text": "b", "label": ["x"]}),
        "d.tsv": b"premise\thypothesis\tlabel\na\tb\t1.5\nc\td\t2\n",
        "e.parquet": _parquet(*_RECORDS),
    },
    alone=True,
)
def _read_labels(folder: Path) -> None:
    _examples("classification", folder)


@reader(
    "check",
    lambda: {"a.txt": TEXT.encode() * 2, "b.jsonl": _json_lines(*_RECORDS), "c.csv": _TABLE},
    alone=True,
)
def _check_data(folder: Path) -> None:
    paths = [str(path) for path in folder.iterdir()]
    check_texts(paths, CorpusOptions(), small_tokenizer("wordpiece"))
    if not paths[0].endswith(".txt"):
        objective: Any = Objective.kinds["classification"].from_tree({"kind": "classification"})
        check_examples(objective, paths, 0.0)


def _texts_to_clean() -> Files:
    """A document that is kept and one that is not."""
    documents = (document.text for document in read_documents(sample_path("en")))
    good = next(text for text in documents if len(text) > 3000)
    return {"a.jsonl": _json_lines({"text": good}, {"text": TEXT})}


@reader("cleaning", _texts_to_clean)
def _clean(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as out, contextlib.suppress(DataError):
        clean(folder, Path(out) / "all", CleanOptions(language="any", rules=()))
    with tempfile.TemporaryDirectory() as out:
        clean(folder, Path(out) / "some", CleanOptions())


_CORPUS = tempfile.TemporaryDirectory()
"""The texts of an interrupted preparation, which compares their times with those it has noted."""


_OPTIONS = CorpusOptions(separator="line", validation=0.2)
_small_shards = mock.patch.object(encode_tasks, "SHARD_BYTES", 800)


@_small_shards
def _interrupt(folder: Path) -> None:
    """What is left of a preparation in three shards, of which the first two are finished."""
    texts = Path(_CORPUS.name)
    for name in "abc":
        lines = (f"The cat {name if n % 3 else ''} sat {n} times.\n" for n in range(40))
        (texts / f"{name}.txt").write_text("".join(lines))
    prepare_part(texts, small_tokenizer("whitespace"), folder / "shards", 1, 1, options=_OPTIONS)
    shutil.rmtree(folder / "shards.partial" / "shard-00002-0000")
    (folder / "shards.partial" / "parts").unlink()


@reader("task shards", made(_interrupt))
@_small_shards
def _resume_preparation(folder: Path) -> None:
    texts, out = Path(_CORPUS.name), folder / "again" / "shards"
    shutil.rmtree(out.parent, ignore_errors=True)
    shutil.copytree(partial_folder(folder / "shards"), partial_folder(out))
    find_unfinished_tokenizer(texts, out, _OPTIONS)
    prepare(texts, small_tokenizer("whitespace"), out, options=_OPTIONS)
