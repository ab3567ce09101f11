from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import sys
import types

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.data import formats
from trivium.data.formats import ReadOptions
from trivium.data.shards import file_sha256
from trivium.data.sources import Source, list_sources, read_documents, read_source, source_files
from trivium.data.stream import FileDigest
from trivium.errors import DataError, MissingExtraError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def texts(paths, **options):
    return [document.text for document in read_documents(paths, **options)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of five bytes, so that every boundary falls somewhere awkward."""
    monkeypatch.setattr(formats, "_BLOCK", 5)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_blank_lines_part_documents(tmp_path, suffix, ends, mark, small_blocks):
    path = tmp_path / f"a.txt{suffix}"
    text = "\n\nÉté 猫\nsecond 🦉\n \t\n\n\nthird\n\nlast without end".replace("\n", ends)
    path.write_bytes(COMPRESS[suffix](mark + text.encode()))
    assert texts([path]) == ["Été 猫\nsecond 🦉", "third", "last without end"]


def test_separators(tmp_path, small_blocks):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\nthree<|end|>four\n<|end|>\n<|end|>\nfive\n", encoding="utf-8")
    lines = path.read_text(encoding="utf-8").split("\n")
    assert texts(path, separator="line") == [line for line in lines if line]
    assert texts(path, separator="file") == [path.read_text(encoding="utf-8").strip("\n")]
    assert texts(path, separator="<|end|>") == ["one\ntwo\n\nthree", "four", "five"]
    assert texts(path, separator="\\n<|end|>\\n") == [
        "one\ntwo\n\nthree<|end|>four",
        "<|end|>\nfive",
    ]
    with pytest.raises(DataError, match="separator is empty"):
        texts(path, separator="")


@given(st.text("ab-\n", max_size=60), st.sampled_from(["-", "--", "-a-", "aa"]), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_any_separator_is_found_across_blocks(text, separator, block):
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    assert list(formats._parted(iter(blocks), separator)) == [
        part.strip("\n") for part in text.split(separator)
    ]


def test_line_separators_of_unicode_do_not_part_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\u2028still\x85one\x0cpage\ntwo", encoding="utf-8")
    assert texts(path, separator="line") == ["one\u2028still\x85one\x0cpage", "two"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_records(tmp_path, suffix):
    wanted = ['said "so"', "two\nlines, 猫"]
    rows = [{"id": n, "body": text} for n, text in enumerate(wanted)]
    table = io.StringIO()
    writer = csv.DictWriter(table, ["id", "body"])
    writer.writeheader()
    writer.writerows(rows)
    lines = "\n\n".join(json.dumps(row) for row in [*rows, {"body": None}])
    for name, content in (("a.jsonl", lines), ("a.csv", table.getvalue())):
        path = tmp_path / (name + suffix)
        path.write_bytes(COMPRESS[suffix](content.encode()))
        assert texts(path, text_field="body") == wanted
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(COMPRESS[suffix](b'id\tbody\n0\tsaid "so"\n1\t"open\n'))
    assert texts(path, text_field="body") == ['said "so"', '"open']


@pytest.mark.parametrize("suffix", COMPRESS)
def test_parquet_agrees_with_its_library(tmp_path, suffix):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    wanted = [f"text {n} 猫" for n in range(2503)]
    stored = io.BytesIO()
    table = pyarrow.table({"body": [*wanted, None], "n": list(range(2504))})
    parquet.write_table(table, stored, row_group_size=701)
    path = tmp_path / f"a.parquet{suffix}"
    path.write_bytes(COMPRESS[suffix](stored.getvalue()))
    assert texts(path, text_field="body") == wanted
    with pytest.raises(DataError, match='no field "text"; it has body, n'):
        texts(path)
    path.write_bytes(COMPRESS[suffix](b"PAR1 is not enough PAR1"))
    with pytest.raises(DataError, match="Parquet"):
        texts(path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"x")
    with pytest.raises(MissingExtraError, match=r"trivium\[parquet\]"):
        texts(path)


def test_folders_globs_and_files(tmp_path):
    for name in ("b/2.txt", "b/1.txt.gz", "a.jsonl", "c.png", ".hidden.txt", ".git/x.txt", "e.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"" if name == "e.txt" else b"x")
    listing = list_sources(tmp_path)
    names = [source.name.removeprefix(f"{tmp_path}/") for source in listing.sources]
    assert names == ["a.jsonl", "b/1.txt.gz", "b/2.txt", "e.txt"]
    assert listing.skipped == (str(tmp_path / "c.png"),)
    assert [source.size for source in listing.sources] == [1, 1, 1, 0]
    globbed = source_files([f"{tmp_path}/b/*.txt", tmp_path / "b", f"{tmp_path}/**/2.txt"])
    assert [source.name[-5:] for source in globbed] == ["2.txt", "xt.gz"]
    assert list_sources(tmp_path / "c.png").sources[0].format == ".txt"
    with pytest.raises(DataError, match=r"No file matches .*\*\.html"):
        source_files(f"{tmp_path}/*.html")
    with pytest.raises(DataError, match="no file or folder"):
        source_files([tmp_path / "a.jsonl", tmp_path / "missing"])
    with pytest.raises(DataError, match="No text was given"):
        source_files([])
    (tmp_path / "pictures").mkdir()
    (tmp_path / "c.png").rename(tmp_path / "pictures" / "c.png")
    with pytest.raises(DataError, match=r"1 other files.*\.parquet"):
        source_files(tmp_path / "pictures")


def test_standard_input(monkeypatch):
    stdin = types.SimpleNamespace(buffer=io.BytesIO(b"one\n\ntwo\r\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [(d.text, d.source) for d in read_documents("-")] == [("one", "-"), ("two", "-")]
    with pytest.raises(DataError, match="Standard input is empty"):
        texts("-")


def test_hub_data(monkeypatch):
    calls = []

    def load_dataset(name, config, *, split, streaming):
        calls.append((name, config, split, streaming))
        return [{"body": "one"}, {"body": "  "}, {"body": "two"}]

    module = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert texts("hf:org/set:en:valid", text_field="body") == ["one", "two"]
    assert texts("hf:set", text_field="body") == ["one", "two"]
    assert calls == [("org/set", "en", "valid", True), ("set", None, "train", True)]
    with pytest.raises(DataError, match='no field "text"; it has body'):
        texts("hf:set")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"trivium\[hub\]"):
        texts("hf:set")


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("where", [0, 4, 65_537, 600_001])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_names_the_byte(tmp_path, suffix, where, mark):
    data = bytearray(mark + ("猫\n\n".encode() * 200_000))
    where += len(mark)
    data[where : where + 1] = b"\xff"
    with pytest.raises(UnicodeDecodeError) as reference:
        bytes(data).decode()
    path = tmp_path / f"bad.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](bytes(data)))
    with pytest.raises(DataError, match=rf"bad\.txt.* at byte {reference.value.start} .*replace"):
        texts(path)
    replaced = texts(path, errors="replace")
    assert any("\ufffd" in text for text in replaced)
    assert len(replaced) in (199_999, 200_000, 200_001)


def test_text_cut_inside_a_character(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("so 猫".encode()[:-1])
    with pytest.raises(DataError, match="at byte 3 "):
        texts(path)
    assert texts(path, errors="replace") == ["so \ufffd"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b"\xef\xbb\xbf \n\n\t", "is empty"),
        ("a.txt", b"text\0more", "binary file .a zero byte at 4"),
        ("a.txt", "text".encode("utf-16"), "UTF-16"),
        ("a.pdf", b"%PDF-1.7\n\0\0", "binary"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": \n', "line 3 is not valid JSON"),
        ("a.jsonl", b'{"text": "x"}\n["text"]\n', "line 2 is a JSON list"),
        ("a.jsonl", b'{"body": "x", "id": 1}\n', 'line 1 has no field "text"; it has body, id'),
        ("a.jsonl", b'{"text": 5}\n', "is a int, not a text"),
        ("a.jsonl", b'{"text": "\\ud800x"}\n', "half a surrogate pair at character 0"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not valid JSON"),
        ("a.csv", b"id,body\n1,x\n", 'no field "text"; it has id, body'),
        ("a.csv", b"id,body\n", 'no field "text"'),
        ("a.csv", b"id,text\n1\n", 'line 2 has no field "text"'),
        ("a.csv", b"text\n", "is empty"),
        ("a.txt.gz", b"plain", "damaged or not what its suffix says|cannot be read"),
        ("a.txt.xz", b"plain", "damaged or not what its suffix says"),
        ("a.txt.zst", b"plain", "damaged or not what its suffix says"),
        ("a.txt.gz", gzip.compress(b"words " * 99, mtime=0)[:-9], "damaged|cannot be read"),
        ("a.txt.xz", lzma.compress(b"words " * 99)[:-9], "damaged"),
        ("a.txt.zst", COMPRESS[".zst"](bytes(range(1, 128)) * 99)[:-9], "damaged"),
    ],
)
def test_bad_files_give_one_clear_error(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as error:
        texts(path)
    assert name.split(".")[0] in str(error.value)
    assert "\n" not in str(error.value)


def test_surrogates_can_be_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\\ud800x \\ud83e\\udd89"}\n')
    assert texts(path, errors="replace") == ["\ufffdx 🦉"]
    with pytest.raises(DataError, match='"strict" or "replace", not "ignore"'):
        texts(path, errors="ignore")


def test_empty_files_of_a_folder_pass_but_not_an_empty_corpus(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(DataError, match="There is no text in"):
        texts(tmp_path)
    (tmp_path / "b.txt").write_bytes(b"word")
    assert texts(tmp_path) == ["word"]
    with pytest.raises(DataError, match=r"a\.txt is empty"):
        texts([tmp_path / "a.txt", tmp_path / "b.txt"])


@pytest.mark.parametrize("suffix", COMPRESS)
def test_digest_is_of_the_file_as_stored(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"word\n" * 200_003) + (b"" if suffix else b"end"))
    digest = FileDigest()
    assert len(list(read_source(Source(str(path), "file"), ReadOptions(), digest))) == 1
    assert (digest.size, digest.hexdigest()) == (path.stat().st_size, file_sha256(path))
