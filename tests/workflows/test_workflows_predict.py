"""Tables with the predictions of a model: their values, their formats, and what stops them."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json

import pyarrow
import pyarrow.parquet
import pytest
import torch
from task_models import as_ours, theirs

from trivium.cli import main
from trivium.data.documents import ReadOptions
from trivium.errors import DataError, RecipeError, TriviumError
from trivium.objectives.classification import TextClassification
from trivium.workflows import predict as module
from trivium.workflows.predict import FORMATS, predict

LABELS = {"0": "bad", "1": "good", "2": "so so"}
ADDED = ["prediction", "score", "runner_up", "runner_up_score"]
ROWS = [
    {"id": "007", "text": 'a "warm", funny film', "note": "", "when": " x "},
    {"id": "1e5", "text": "a dull;\nlifeless mess", "note": "café | 电影", "when": "None"},
    {"id": "", "text": "the cat sat", "note": "'=1+1", "when": "\ttab"},
]


def text_of(path):
    return io.StringIO(path.read_bytes().decode(), newline="")


READERS = {
    ".csv": lambda path: list(csv.DictReader(text_of(path))),
    ".tsv": lambda path: list(
        csv.DictReader(text_of(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    ),
    ".jsonl": lambda path: [json.loads(line) for line in text_of(path)],
    ".parquet": lambda path: pyarrow.parquet.read_table(path).to_pylist(),
}


@pytest.fixture(scope="module")
def hf():
    return theirs("BertForSequenceClassification", num_labels=3)


@pytest.fixture(scope="module")
def lm(hf):
    return as_ours(hf, "bert", id2label=LABELS)


@pytest.fixture(scope="module")
def folder(lm, tmp_path_factory):
    return str(lm.save(tmp_path_factory.mktemp("model") / "lm"))


def write(path, rows, encoding="utf-8", delimiter=","):
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        writer.writerows(row.values() for row in rows)
    return path


def without(rows):
    return [{name: one for name, one in row.items() if name not in ADDED} for row in rows]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_predictions_are_those_of_transformers(hf, lm, tmp_path):
    texts = [row["text"] for row in ROWS]
    write(tmp_path / "new.csv", ROWS)
    predict(lm, tmp_path / "new.csv", tmp_path / "scored.jsonl")
    scored = READERS[".jsonl"](tmp_path / "scored.jsonl")
    for row, text in zip(scored, texts, strict=True):
        ids = lm.text_tokenizer.encode(text).ids
        with torch.no_grad():
            theirs_logits = hf(torch.tensor([ids])).logits[0].double()
        ranked = theirs_logits.softmax(-1).sort(descending=True)
        names = [LABELS[str(int(one))] for one in ranked.indices]
        assert [row["prediction"], row["runner_up"]] == names[:2]
        assert [row["score"], row["runner_up_score"]] == pytest.approx(
            ranked.values[:2].tolist(), abs=1e-5
        )
        assert list(row) == [*ROWS[0], *ADDED]
    labels = lm.classify(texts)
    assert [row["prediction"] for row in scored] == [one.label for one in labels]


@pytest.mark.filterwarnings("ignore:the cells of")
@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("source", ["commas", "semicolons", "windows-1252", "jsonl.gz", "parquet"])
def test_columns_keep_their_order_and_values(source, ending, lm, tmp_path):
    rows, reading = [dict(row) for row in ROWS], ReadOptions()
    if source == "windows-1252":
        rows[1]["note"], reading = "café", ReadOptions(encoding="windows-1252")
    if ending == ".tsv":  # which has no tabs and line breaks in cells
        rows = [{k: v.replace("\n", " ").replace("\t", " ") for k, v in r.items()} for r in rows]
    path = tmp_path / "new.csv"
    if source == "jsonl.gz":
        path = tmp_path / "new.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    elif source == "parquet":
        path = tmp_path / "new.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write(path, rows, reading.encoding, ";" if source == "semicolons" else ",")
    out = tmp_path / f"scored{ending}"
    result = predict(lm, path, out, reading=reading)
    scored = READERS[ending](out)
    assert without(scored) == rows
    assert all(list(row) == [*ROWS[0], *ADDED] for row in scored)
    assert result.num_rows == len(rows)
    # What is written is read by the same command, with names of its own for more columns.
    again = tmp_path / f"again{ending}"
    predict(lm, out, again, prefix="second_")
    for row in READERS[ending](again):
        assert row["second_prediction"] == row["prediction"]


def test_types_of_parquet_are_kept_and_lists_are_json_in_tables(lm, tmp_path):
    schema = pyarrow.schema(
        [
            ("text", pyarrow.string()),
            ("tags", pyarrow.list_(pyarrow.float32())),
            ("day", pyarrow.date32()),
            ("count", pyarrow.int8()),
            ("inner", pyarrow.struct([("a", pyarrow.int32())])),
        ]
    )
    day = datetime.date(2024, 2, 29)
    rows = [
        {"text": "a film", "tags": [0.5, None], "day": day, "count": None, "inner": {"a": 1}},
        {"text": "a mess", "tags": None, "day": None, "count": 3, "inner": None},
    ]
    path = tmp_path / "new.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)
    predict(lm, path, tmp_path / "scored.parquet")
    written = pyarrow.parquet.read_table(tmp_path / "scored.parquet")
    assert [*written.schema][:5] == [*schema]
    assert without(written.to_pylist()) == rows
    predict(lm, path, tmp_path / "scored.csv")
    first, second = READERS[".csv"](tmp_path / "scored.csv")
    assert [*first.values()][:5] == ["a film", "[0.5, null]", "2024-02-29", "", '{"a": 1}']
    assert [*second.values()][:5] == ["a mess", "", "", "3", ""]


def test_columns_that_only_later_records_have(lm, tmp_path):
    rows = [{"text": "a film", "a": 1}, {"b": None, "text": "a mess"}, {"text": "x", "b": "y"}]
    path = tmp_path / "new.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict(lm, path, tmp_path / "scored.csv")
    scored = READERS[".csv"](tmp_path / "scored.csv")
    assert [list(row.values())[:3] for row in scored] == [
        ["a film", "1", ""], ["a mess", "", ""], ["x", "", "y"],
    ]  # fmt: skip
    predict(lm, path, tmp_path / "scored.jsonl")
    assert without(READERS[".jsonl"](tmp_path / "scored.jsonl")) == rows


def test_columns_without_a_name_are_kept(lm, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("text,,\na film,1,2\n")
    predict(lm, path, tmp_path / "scored.csv")
    assert (tmp_path / "scored.csv").read_text().splitlines()[1].startswith("a film,1,2,")


def test_a_threshold_gives_a_label_of_the_user(lm, tmp_path):
    path = write(tmp_path / "new.csv", ROWS)
    scores = sorted(one.score for one in lm.classify([row["text"] for row in ROWS]))
    out = tmp_path / "scored.jsonl"
    result = predict(lm, path, out, threshold=scores[1], below="other")
    scored = READERS[".jsonl"](out)
    assert [row["prediction"] == "other" for row in scored] == [
        row["score"] < scores[1] for row in scored
    ]
    assert result.num_below == 1
    for wrong in ({"threshold": 0.5}, {"below": "other"}, {"threshold": 1.5, "below": "other"}):
        with pytest.raises(TriviumError, match="give a threshold from 0 to 1"):
            predict(lm, path, out, **wrong)


def test_several_labels_and_numbers(tmp_path):
    path = write(tmp_path / "new.csv", ROWS)
    texts = [row["text"] for row in ROWS]
    several = as_ours(
        theirs("BertForSequenceClassification", num_labels=3), "bert", id2label=LABELS,
        problem_type="multi_label_classification",
    )  # fmt: skip
    predict(several, path, tmp_path / "scored.jsonl")
    predict(several, path, tmp_path / "scored.csv")
    for row, line, answer in zip(
        READERS[".jsonl"](tmp_path / "scored.jsonl"),
        READERS[".csv"](tmp_path / "scored.csv"),
        several.classify(texts),
        strict=True,
    ):
        assert row["prediction"] == list(answer.label)
        assert line["prediction"] == ",".join(answer.label)
        left = [name for name in answer.scores if name not in answer.label]
        assert row["runner_up"] == next(iter(left), None)
    number = as_ours(theirs("BertForSequenceClassification", num_labels=1), "bert")
    rated = write(tmp_path / "rated.csv", [row | {"score": "3"} for row in ROWS])
    predict(number, rated, tmp_path / "numbers.csv")
    scored = READERS[".csv"](tmp_path / "numbers.csv")
    assert [*scored[0]] == [*ROWS[0], "score", "prediction"]
    assert [float(row["prediction"]) for row in scored] == pytest.approx(
        [one.score for one in number.classify(texts)]
    )
    with pytest.raises(TriviumError, match="one class per text"):
        predict(number, path, tmp_path / "x.csv", threshold=0.5, below="other")


def test_pairs_of_texts(lm, tmp_path):
    rows = [{"premise": "a man sleeps", "hypothesis": "he is awake", "id": "01"}]
    path = write(tmp_path / "new.csv", rows)
    predict(lm, path, tmp_path / "scored.csv")
    (scored,) = READERS[".csv"](tmp_path / "scored.csv")
    answer = lm.classify([("a man sleeps", "he is awake")])[0]
    assert scored["prediction"] == answer.label
    assert float(scored["score"]) == pytest.approx(answer.score)


BAD = {
    "blank": ("text,id\na film,1\n  ,2\n", r'"text" of .*new\.csv, line 3 is blank'),
    "taken": ("text,score\na film,1\n", r'has a column "score" already.*--prefix'),
    "no text": ("words,id\na film,1\n", r"new\.csv has no column for the text.*text_field"),
    "cells": ("text,id\na film,1\nx\n", r"line 3 has 1 cells, the header has 2"),
    "bytes": (b"text,id\ncaf\xe9,1\n", r"line 2 is not valid UTF-8.*--encoding"),
}


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("kind", BAD)
def test_bad_data_is_one_error_and_leaves_no_file(kind, ending, folder, tmp_path, capsys):
    content, message = BAD[kind]
    path = tmp_path / "new.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    out = tmp_path / f"scored{ending}"
    out.write_text("what was there")
    assert main(["predict", folder, str(path), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    with pytest.raises(DataError, match=message):
        predict(folder, path, out)
    assert out.read_text() == "what was there"
    assert files(tmp_path) == ["new.csv", out.name]


@pytest.mark.parametrize("ending", FORMATS)
def test_an_interrupt_leaves_no_file(ending, lm, tmp_path):
    path = write(tmp_path / "new.csv", [{"text": f"film {n}", "id": str(n)} for n in range(600)])

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(lm, path, tmp_path / f"scored{ending}", progress=interrupt)
    assert files(tmp_path) == ["new.csv"]


def test_what_is_refused(lm, tmp_path):
    path = write(tmp_path / "new.csv", ROWS)
    table = tmp_path / "scored.csv"
    for data, out, message in (
        (path, tmp_path / "scored.xlsx", "does not end in .csv"),
        (path, path, "is a file that is read"),
        ("-", table, "only once"),
        (tmp_path / "news.csv", table, "Did you mean .*new.csv"),
    ):
        with pytest.raises(DataError, match=message):
            predict(lm, data, out)
    with pytest.raises(DataError, match=r"line 3: a cell has a tab or a line break"):
        predict(lm, path, tmp_path / "scored.tsv")
    with pytest.raises(RecipeError, match="no other key of data"):
        predict(lm, path, table, changes=["data.bad_records=skip"])
    with pytest.raises(TriviumError, match=r"tasks with labels.*perplexity"):
        predict(as_ours(theirs("BertForMaskedLM"), "bert"), path, table)
    assert files(tmp_path) == ["new.csv"]


@pytest.mark.parametrize("ending", FORMATS)
def test_records_are_not_held(ending, lm, tmp_path, monkeypatch):
    """Records that are read but not yet written are at most those of a batch and a row group."""
    monkeypatch.setattr(module, "_ROWS", 4)
    monkeypatch.setattr(module, "_GROUP", 8)
    path = write(tmp_path / "new.csv", [{"text": f"film {n}", "id": str(n)} for n in range(100)])
    records, read, most = TextClassification.records, [0], [0]

    def counted(*args):
        for record in records(*args):
            read[0] += 1
            yield record

    def progress(done, total):
        most[0] = max(most[0], read[0] - total - done)

    monkeypatch.setattr(TextClassification, "records", counted)
    predict(lm, path, tmp_path / f"scored{ending}", progress=progress)
    assert read == [200]  # each is read twice
    assert most[0] <= 4


def test_the_command_says_what_it_read_and_wrote(folder, tmp_path, capsys):
    path = tmp_path / "new.csv"
    write(path, [{"Body": "caf\u00e9", "id": "01"}], "windows-1252")
    out = tmp_path / "scored.csv"
    column = ["--set", "objective.text_field=Body"]
    for keys in (["--encoding", "windows-1252"], ["--set", "data.encoding=windows-1252"]):
        limit = ["--threshold", "1", "--below", "other"]
        assert main(["predict", folder, str(path), "--out", str(out), *column, *keys, *limit]) == 0
        told = capsys.readouterr()
        assert told.out == ""
        assert "text <- Body; ignored: id" in told.err
        assert f"rows written to {out}: 1" in told.err
        assert "labelled other: 1" in told.err
        (row,) = READERS[".csv"](out)
        assert [row["Body"], row["id"], row["prediction"]] == ["café", "01", "other"]


@pytest.mark.parametrize("ending", FORMATS)
def test_tags_are_lists(ending, tmp_path):
    lm = as_ours(theirs("BertForTokenClassification", num_labels=3), "bert", id2label=LABELS)
    rows = [{"id": "01", "tokens": ["the", "cat", "sat"]}, {"id": "2", "tokens": ["a", "film"]}]
    path = tmp_path / "new.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict(lm, path, tmp_path / f"scored{ending}")
    scored = READERS[ending](tmp_path / f"scored{ending}")
    answers = lm.tag([row["tokens"] for row in rows])
    for row, answer, given in zip(scored, answers, rows, strict=True):
        assert list(row) == ["id", "tokens", "prediction", "score"]
        lists = [row[name] for name in ("tokens", "prediction")]
        if ending in (".csv", ".tsv"):
            lists = [json.loads(one) for one in lists]
        assert lists == [given["tokens"], [word.tag for word in answer]]
        assert float(row["score"]) == pytest.approx(min(word.score for word in answer))


@pytest.mark.parametrize("ending", FORMATS)
def test_answers_to_questions(ending, tmp_path):
    lm = as_ours(theirs("BertForQuestionAnswering"), "bert")
    rows = [
        {"id": "01", "question": "the cat?", "context": "the cat sat on a mat"},
        {"id": "2", "question": "a film?", "context": "a funny film"},
    ]
    predict(lm, write(tmp_path / "new.csv", rows), tmp_path / f"scored{ending}")
    scored = READERS[ending](tmp_path / f"scored{ending}")
    for row, given in zip(scored, rows, strict=True):
        assert list(row) == ["id", "question", "context", "prediction", "score"]
        (best,) = lm.answer(given["question"], given["context"])
        assert row["prediction"] == best.text
        assert float(row["score"]) == pytest.approx(best.score, rel=1e-4)
        assert {name: row[name] for name in given} == given


def test_words_one_a_line_cannot_be_written(tmp_path):
    lm = as_ours(theirs("BertForTokenClassification", num_labels=3), "bert", id2label=LABELS)
    path = tmp_path / "new.conll"
    path.write_text("the O\ncat O\n")
    with pytest.raises(DataError, match=r"new\.conll, line 1: columns cannot be added .*words"):
        predict(lm, path, tmp_path / "scored.csv")
    assert files(tmp_path) == ["new.conll"]


def test_columns_that_are_empty_at_first(lm, tmp_path, monkeypatch):
    """The types of Parquet follow from the first rows, where what is empty may be text later."""
    monkeypatch.setattr(module, "_GROUP", 2)
    rows = [{"text": "a film", "note": None, "tags": []}] * 3
    rows.append({"text": "a mess", "note": "late", "tags": ["x"]})
    path = tmp_path / "new.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict(lm, path, tmp_path / "scored.parquet")
    assert without(READERS[".parquet"](tmp_path / "scored.parquet")) == rows
    path.write_text(path.read_text() + json.dumps({"text": "x", "note": 3, "tags": []}))
    with pytest.raises(DataError, match=r"cannot be written as \.parquet.*\.jsonl"):
        predict(lm, path, tmp_path / "mixed.parquet")
    assert files(tmp_path) == ["new.jsonl", "scored.parquet"]
