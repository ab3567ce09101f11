"""One record reader: the same records from every format, errors with file and line."""

from __future__ import annotations

import csv
import functools
import io
import json
import socket
import sys
import types
import warnings

import pytest
from test_data_files import COMPRESS, suffix_id

from trivium.data.documents import ReadOptions, read_documents
from trivium.data.records import (
    BadRecords,
    Record,
    RecordOptions,
    find_hub_problem,
    json_type,
    read_header,
    read_records,
)
from trivium.errors import DataError, MissingExtraError, TriviumError
from trivium.files import read_json
from trivium.interop.tensor_files import read_tensors
from trivium.text import Tokenizer

ROWS = [{"id": "0", "body": 'said "so"'}, {"id": "1", "body": "two\nlines, 猫"}]


@pytest.mark.parametrize("suffix", COMPRESS, ids=suffix_id)
@pytest.mark.parametrize(
    ("name", "place"),
    [("a.jsonl", "line 3"), ("a.json", "item 2"), ("b.json", "line 2"), ("a.csv", "line 3")],
)
def test_all_formats_agree(name, place, suffix, tmp_path):
    table = io.StringIO()
    writer = csv.DictWriter(table, ["id", "body"])
    writer.writeheader()
    writer.writerows(ROWS)
    contents = {
        "a.jsonl": "\n\n".join(map(json.dumps, ROWS)),
        "a.json": json.dumps(ROWS, indent=1),
        "b.json": "\n".join(map(json.dumps, ROWS)),
        "a.csv": table.getvalue(),
    }
    path = tmp_path / (name + suffix)
    path.write_bytes(COMPRESS[suffix](contents[name].encode()))
    records = list(read_records(path))
    assert records == ROWS
    assert [record.untyped for record in records] == [name == "a.csv"] * 2
    assert records[1].where == f"{path}, {place}"


def test_places_and_headers_of_tables(tmp_path):
    tsv = tmp_path / "a.tsv"
    tsv.write_bytes(b'id\tbody\r\n\r\n0\tsaid "so"\r\n1\t"open\r\n')
    assert [record["body"] for record in read_records(tsv)] == ['said "so"', '"open']
    assert read_header(str(tsv)) == ("id", "body")
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    assert read_header(str(tmp_path / "a.json")) == ()
    plain = [*read_records(tsv, RecordOptions(["x", "y"]))]
    assert plain[0] == {"x": "id", "y": "body"}
    assert plain[0].where.endswith("line 1")
    table = tmp_path / "lines.csv"
    table.write_bytes(b'id,body\n0,"one\ntwo\r\n\r\nfive"\n1,six\n2,"a\nb"\n3,nine\n')
    lines = [record.where.rpartition(" ")[2] for record in read_records(table)]
    assert lines == ["2", "6", "7", "9"]


def test_parquet_agrees_with_its_library(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    texts = [*(f"text {n} 猫" for n in range(2503)), None]
    parquet.write_table(pyarrow.table({"body": texts, "n": range(2504)}), path, row_group_size=701)
    records = list(read_records(path))
    assert [record["body"] for record in records] == texts
    assert [record["n"] for record in records] == [*range(2504)]
    assert records[1700].where == f"{path}, row 1701"
    assert [*records[0]] == ["body", "n"]
    assert [*next(read_records(path, RecordOptions(columns=["body"])))] == ["body"]
    assert [*next(read_records(path, RecordOptions(columns=["text"])))] == ["body", "n"]
    path.write_bytes(b"PAR1 is not enough PAR1")
    with pytest.raises(DataError, match="Parquet"):
        list(read_records(path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[parquet\]'"):
        list(read_records(path))


def test_hub(monkeypatch):
    calls = []

    def load_dataset(name, config, *, split, revision, streaming):
        calls.append((name, config, split, revision, streaming))
        if name in ("script", "bookcorpus", "legacy-datasets/wikipedia"):
            raise RuntimeError("Dataset scripts are no longer supported")
        return [{"body": "one"}, {"body": "two"}]

    module = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("trivium.data.records.find_hub_problem", lambda: None)
    records = list(read_records(["hf:org/set@abc:en:valid", "hf:set"]))
    assert [record["body"] for record in records] == ["one", "two"] * 2
    assert records[1].where == "hf:org/set@abc:en:valid, row 2"
    assert calls == [("org/set", "en", "valid", "abc", True), ("set", None, "train", None, True)]
    message = "hf:script cannot be read: Dataset scripts are no longer.*hf:script@refs/convert"
    with pytest.raises(DataError, match=message):
        list(read_records("hf:script"))
    for script, twin in (
        ("bookcorpus", "rojagtap/bookcorpus."),
        ("legacy-datasets/wikipedia:20220301.fr", "wikimedia/wikipedia:20231101.fr."),
    ):
        with pytest.raises(DataError, match=f"{script} cannot be read:.*as Parquet: hf:{twin}$"):
            list(read_records(f"hf:{script}"))
    with pytest.raises(DataError, match="is not a data set"):
        list(read_records("hf:a:b:c:d"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[hub\]'"):
        list(read_records("hf:set"))


def test_a_hub_that_does_not_answer_is_one_error_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "http://127.0.0.1:{1}".format(*free.getsockname())
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    module = types.SimpleNamespace(load_dataset=lambda *_, **__: pytest.fail("asked the hub"))
    monkeypatch.setitem(sys.modules, "datasets", module)
    find_hub_problem.cache_clear()
    try:
        with pytest.raises(DataError, match=f"hf:set cannot be read: {address}.*HF_ENDPOINT"):
            list(read_records("hf:set"))
    finally:
        find_hub_problem.cache_clear()


def test_standard_input_is_json_lines(monkeypatch):
    stdin = types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(b'{"a": 1}\n{"a": 2}\n')))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [(record["a"], record.where) for record in read_records("-")] == [
        (1, "standard input, line 1"),
        (2, "standard input, line 2"),
    ]


def test_an_unclosed_quote_is_an_error_and_not_a_document(tmp_path):
    """Fault 6 of version 0.1: it swallowed the rest of the file."""
    path = tmp_path / "a.csv"
    path.write_text('text,n\n"one",1\n"two,2\n' + "three,3\n" * 1000)
    records = read_records(path)
    assert next(records) == {"text": "one", "n": "1"}
    with pytest.raises(DataError, match=r"a\.csv: the row that begins in line 3 .*never closed"):
        next(records)
    path.write_text('text,n\n"two,2\n"three",3\n')
    with pytest.raises(DataError, match="begins in line 2 is not valid CSV"):
        list(read_records(path))


def test_broken_files_give_one_clear_error(tmp_path):
    for name, data, message in (
        ("a.jsonl", b'{"text": "x"}\n\n{"text": \n', "a.jsonl, line 3 is not valid JSON"),
        ("a.jsonl", b'{"text": "x"}\n["text"]\n', "line 2 is a list, not an object"),
        ("a.jsonl", b'{"text": "\\ud800x"}\n', "line 1 holds a lone surrogate"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not valid JSON"),
        ("a.jsonl", b" \n", "a.jsonl holds no record"),
        ("a.json", b'[{"a": 1},\n {"a" 2}]', "a.json, line 2 is not valid JSON"),
        ("a.json", b'[{"a": 1}, 2]', "item 2 is a number, not an object"),
        ("a.csv", b"a,b\n1\n", r"line 2 has 1 cells, the header has 2 \(a, b\)"),
        ("a.csv", b"a,a\n1,2\n", 'line 1: the header has the column "a" twice.*add a header'),
        ("a.csv", b"text\n", "holds no record"),
        ("a.csv", b"a\n1,2\n", r"header has 1 \(a\)\. .*Cells of a table are separated by commas"),
        (
            "a.csv",
            "a,b\n\u6211\u4eec\u7684,1\n".encode("gb18030"),
            "line 2 is not valid UTF-8 .*probably gb18030: give --encoding gb18030",
        ),
        ("a.txt", b"text\n", "a.txt has none of the suffixes .jsonl .json"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(DataError, match=message) as error:
            list(read_records(path))
        assert "\n" not in str(error.value)
    path = tmp_path / "b.jsonl"
    path.write_bytes(b'{"text": "\\ud800x \\ud83e\\udd89"}\n')
    assert [*read_records(path, RecordOptions(errors="replace"))] == [{"text": "\ufffdx 🦉"}]


def test_columns():
    record = Record({"Text": "x", "translation": {"en": "y", "fr": " "}, "n": 5}, "a.jsonl, line 1")
    assert record.value("translation.en") == record.text("translation.en") == "y"
    assert record.value("translation.fr") == " "
    for attempt, message in (
        (lambda: record.text("translation.fr"), "blank"),
        (lambda: record.text("n"), '"n" of a.jsonl, line 1 is a number, not a string'),
        (lambda: record.value("nn"), 'no column "nn"; it has "Text", "translation.en", .*mean "n"'),
    ):
        with pytest.raises(DataError, match=message):
            attempt()
    untyped = Record({"good film": "1"}, "a.csv, line 2", untyped=True)
    with pytest.raises(
        DataError, match=r"cells of the first line: if it is data, add a header line"
    ):
        untyped.value("text", "--text-field")
    values = ("", "a", {}, [], None, True, 1.5)
    names = ["blank", "a string", "an object", "a list", "null", "true or false", "a number"]
    assert [json_type(value) for value in values] == names


def test_bad_records_are_skipped_and_counted_by_kind(tmp_path):
    path, bad = tmp_path / "a.jsonl", BadRecords()
    path.write_text('{"a": 1}\n[1]\n{"a" 2}\n[2, 3]\n{"a": 3}\n', "utf-8")
    table = tmp_path / "b.csv"
    table.write_text("a,b\n1,2\n3\n4,5,6\n", "utf-8")
    records = list(read_records([path, table], RecordOptions(bad=bad)))
    assert [record["a"] for record in records] == [1, 3, "1"]
    assert bad.count == 5
    assert sorted(line.split(" ")[0] for line in bad.lines) == ["1", "2", "2"]
    assert any("a.jsonl, line 2 is a list" in line for line in bad.lines)


def test_other_encodings_are_named_and_read(tmp_path):
    for encoding, text in (
        (
            "gb18030",
            "\u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d\uff0c\u6211\u5728\u5317\u4eac\u3002",
        ),
        (
            "big5",
            "\u4eca\u5929\u7684\u5929\u6c23\u5f88\u597d\uff0c\u6211\u5728\u81fa\u5317\u9019\u500b\u3002",
        ),
        (
            "shift_jis",
            "\u79c1\u306f\u6771\u4eac\u306b\u4f4f\u3093\u3067\u3044\u307e\u3057\u305f\u3002",
        ),
        (
            "euc-kr",
            "\uc800\ub294 \uc11c\uc6b8\uc5d0 \uc788\ub294 \ud559\uad50\ub97c \ub2e4\ub2cc\ub2e4.",
        ),
        (
            "windows-1252",
            "Le caf\u00e9 \u00e9tait ferm\u00e9 cet \u00e9t\u00e9, m\u00eame \u00e0 No\u00ebl.",
        ),
        ("utf-16", "caf\u00e9"),
    ):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding)
        with pytest.raises(DataError, match=f"give --encoding {encoding} "):
            list(read_records(path))
        (record,) = read_records(path, RecordOptions(encoding=encoding))
        assert record["text"] == text
    path.write_bytes("Müller und Söhne: 今天的天气很好。".encode()[:-1])
    with pytest.raises(DataError, match=r"a\.jsonl, line 1 is not valid UTF-8: the file ends in"):
        list(read_records(path))
    with pytest.raises(DataError, match=r'no encoding "gbx"; some are utf-8, utf-16, gb18030'):
        ReadOptions(encoding="gbx")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
@pytest.mark.parametrize(
    ("separator", "name"),
    [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars"), (",", "commas")],
)
def test_the_separator_of_a_table_is_recognised_and_named(tmp_path, suffix, separator, name):
    rows = [["id", "text", "label"], ["1", "a, b: 3,5", "x"], ["2", 'said "so"; \n two', "y"]]
    if suffix == ".tsv" and separator == "\t":
        rows[2][1] = "plain"
    table = io.StringIO()
    csv.writer(table, delimiter=separator).writerows(rows)
    path = tmp_path / f"a{suffix}"
    compress = COMPRESS[".gz"] if suffix.endswith(".gz") else bytes
    path.write_bytes(compress(table.getvalue().encode()))
    usual = "\t" if suffix == ".tsv" else ","
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = list(read_records(path))
    told = [f"the cells of {path} are separated by {name}."] if separator != usual else []
    assert [str(one.message) for one in caught] == told
    assert [list(record.values()) for record in found] == rows[1:]
    assert [record.where.rpartition(" ")[2] for record in found] == ["2", "3"]


def test_columns_without_a_name_are_no_error(tmp_path):
    """An index that pandas wrote, and empty columns of a spreadsheet."""
    (tmp_path / "a.csv").write_text(",text,label,,\n0,a,x,,\n")
    [record] = read_records(str(tmp_path / "a.csv"))
    assert (record["text"], record["label"]) == ("a", "x")


def test_what_looks_like_a_separator_is_text(tmp_path):
    for name, content, width in (
        ("a.csv", "text;x,label\na;b,1\nc,2\n", 2),
        ("b.csv", "text\none; two\nthree; four\n", 1),
        ("c.csv", '"a;b",label\n"x;y",1\n', 2),
        ("d.tsv", "Yes, sir; no\tOui, monsieur; non\nNo\tNon\n", 2),
    ):
        (tmp_path / name).write_text(content)
        assert {len(record) for record in read_records(tmp_path / name)} == {width}
    (tmp_path / "excel.csv").write_text("sep=;\ntext;label\nx;1\n")
    with pytest.warns(UserWarning, match="separated by semicolons"):
        (record,) = read_records(tmp_path / "excel.csv")
    assert (record, record.where[-6:]) == ({"text": "x", "label": "1"}, "line 3")


def test_links_to_folders_are_followed(tmp_path):
    real = tmp_path / "elsewhere" / "real"
    real.mkdir(parents=True)
    (real / "a.jsonl").write_text('{"text": "x"}\n')
    data = tmp_path / "data"
    data.mkdir()
    (data / "linked").symlink_to(real)
    (data / "again").symlink_to(real / "a.jsonl")
    (data / "loop").symlink_to(data)
    (real / "back").symlink_to(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"text": "not in the data"}\n')
    assert [record["text"] for record in read_records(data)] == ["x"]
    (data / "lost.jsonl").symlink_to(tmp_path / "missing")
    with pytest.raises(DataError, match=r"lost.jsonl is a link to a file that is missing"):
        list(read_records(data))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    "name",
    [
        *("a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.txt", "a.jsonl.gz"),
        *("tokenizer.json", "vocab.txt", "spm.model", "merges.txt", "qwen.tiktoken"),
        *("model.safetensors", "pytorch_model.bin", "config.json"),
    ],
)
def test_a_git_lfs_pointer_is_named(tmp_path, name):
    pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_text(POINTER)
    (tmp_path / "vocab.json").write_text("{}")
    if name.startswith("a."):
        reader = lambda: list(read_documents(path))  # noqa: E731
    elif name in ("model.safetensors", "pytorch_model.bin"):
        reader = functools.partial(read_tensors, tmp_path)
    else:
        reader = functools.partial(read_json if name == "config.json" else Tokenizer.load, path)
    with pytest.raises(TriviumError, match=rf"{name} is a Git LFS pointer.*git lfs pull"):
        reader()


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_a_row_of_spaces_is_a_record_and_a_blank_line_is_none(suffix, separator, tmp_path):
    rows = [["text", "label"], ["good", "a"], [" ", " "], ["bad", "b"]]
    lines = [separator.join(row) for row in rows]
    path = tmp_path / f"data.{suffix}"
    path.write_text("\n".join([*lines[:2], "", "  ", *lines[2:]]) + "\n")
    with warnings.catch_warnings(action="ignore"):
        records = list(read_records(path))
    assert [record["text"] for record in records] == ["good", " ", "bad"]
