"""Documents of plain text and of records; what paths stand for."""

from __future__ import annotations

import io
import itertools
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.data import ReadOptions, documents, read_documents
from trivium.data.documents import list_text_sources
from trivium.errors import DataError


def texts(paths, **options):
    return [document.text for document in read_documents(paths, ReadOptions(**options))]


def test_separators(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PART", 5)
    path = tmp_path / "a.txt"
    path.write_text("\n\none\ntwo\n\t \n\nthree<|end|>four\n<|end|>\n<|end|>\nfive\n")
    lines = path.read_text().split("\n")
    assert texts(path) == ["one\ntwo", "three<|end|>four\n<|end|>\n<|end|>\nfive"]
    assert texts(path, separator="line") == [line for line in lines if line.strip()]
    assert texts(path, separator="file") == [path.read_text().strip("\n")]
    assert texts(path, separator="<|end|>") == ["one\ntwo\n\t \n\nthree", "four", "five"]
    assert texts(path, separator="\\n<|end|>\\n") == [
        "one\ntwo\n\t \n\nthree<|end|>four",
        "<|end|>\nfive",
    ]
    with pytest.raises(DataError, match="separator is empty"):
        texts(path, separator="")
    with pytest.raises(DataError, match='"strict" or "replace", not "ignore"'):
        texts(path, errors="ignore")


@given(st.text("ab-\n", max_size=60), st.sampled_from(["-", "--", "-a-", "aa"]), st.integers(1, 9))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_separator_is_found_across_blocks(text, separator, block):
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    pieces = documents.split_blocks(iter(blocks), separator)
    found = [part for part in documents.join_texts(documents.join_parts(pieces)) if part]
    assert found == [part for one in text.split(separator) if (part := one.strip("\n"))]


@given(st.text("ab \n", max_size=60), st.integers(1, 9))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_parts_of_any_size_are_the_same_documents(text, size):
    naive = {
        "line": text.split("\n"),
        "blank": ["".join(run) for _, run in itertools.groupby(text.splitlines(True), str.isspace)],
        "file": [text],
        "-": [text],
    }
    for separator, expected in naive.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(documents, "PART", size)
            pieces = documents._split_file(io.StringIO(text), separator)
            parts = list(documents.join_parts(pieces))
        found = [one for one in documents.join_texts(parts) if one.strip()]
        assert [one.strip("\n") for one in expected if one.strip()] == found


def test_only_line_feeds_end_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\u2028still\x85one\x0cpage\r\ntwo", encoding="utf-8", newline="")
    assert texts(path, separator="line") == ["one\u2028still\x85one\x0cpage", "two"]


def test_text_columns_of_records(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "a\\r\\nb"}\n{"body": null}\n{"body": " "}\n{"body": "c"}\n')
    assert texts(path, text_field="body") == ["a\nb", "c"]
    with pytest.raises(
        DataError, match=r'line 1 has no column "text"; it has "body".*--text-field'
    ):
        texts(path)
    path.write_text('{"text": 5}\n')
    with pytest.raises(DataError, match=r'"text" of .*line 1 is a number, not a string'):
        texts(path)
    (tmp_path / "b.csv").write_text("a fine film\nanother\n")
    with pytest.raises(DataError, match="cells of the first line: if it is data, add a header"):
        texts(tmp_path / "b.csv")


def test_folders_globs_and_files(tmp_path):
    for name in ("b/2.txt", "b/1.txt.gz", "a.jsonl", "c.png", ".hidden.txt", ".git/x.txt", "e.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"" if name == "e.txt" else b"x")
    listing = list_text_sources(tmp_path)
    names = [source.name.removeprefix(f"{tmp_path}/") for source in listing.sources]
    assert names == ["a.jsonl", "b/1.txt.gz", "b/2.txt", "e.txt"]
    assert listing.skipped == (str(tmp_path / "c.png"),)
    assert [source.size for source in listing.sources] == [1, 1, 1, 0]
    paths = [f"{tmp_path}/b/*.txt", tmp_path / "b", f"{tmp_path}/**/2.txt"]
    assert [source.name[-5:] for source in list_text_sources(paths).sources] == ["2.txt", "xt.gz"]
    assert texts(tmp_path / "c.png") == ["x"]
    for path, message in (
        (f"{tmp_path}/*.html", r"No file matches .*\*\.html"),
        ([tmp_path / "a.jsonl", tmp_path / "missing"], "no file or folder"),
        ([], "There is no input"),
    ):
        with pytest.raises(DataError, match=message):
            list_text_sources(path)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "c.png").rename(tmp_path / "pictures" / "c.png")
    with pytest.raises(DataError, match=r"1 other files.*\.parquet"):
        list_text_sources(tmp_path / "pictures")


def test_standard_input_and_the_hub(monkeypatch):
    stdin = types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(b"one\n\ntwo\r\n")))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [(d.text, d.source) for d in read_documents("-")] == [("one", "-"), ("two", "-")]
    with pytest.raises(DataError, match="Standard input is empty"):
        texts("-")
    sets = {
        "set": [{"text": "one"}, {"text": "  "}, {"text": "two"}],
        "org/wiki": [{"id": "7", "title": "Three", "text": "three"}],
    }
    module = types.SimpleNamespace(load_dataset=lambda name, *_, **__: sets[name])
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("trivium.data.records.find_hub_problem", lambda: None)
    assert texts(["hf:set", "hf:org/wiki:20231101.en"]) == ["one", "two", "three"]


def test_empty_files_of_a_folder_are_skipped_but_not_an_empty_corpus(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "a.csv").write_bytes(b"text\n")
    with pytest.raises(DataError, match="There is no text in"):
        texts(tmp_path)
    (tmp_path / "b.txt").write_bytes(b"word")
    assert texts(tmp_path) == ["word"]
    for name in ("a.txt", "a.csv"):
        with pytest.raises(DataError, match=rf"{name} is empty"):
            texts([tmp_path / name, tmp_path / "b.txt"])
