from __future__ import annotations

import csv
import gzip
import json
import lzma

import pytest
import zstandard

from trivium.data.labelled import LabelledText, label_kind, label_names, natural_order, read_texts
from trivium.errors import DataError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def write_lines(path, *records):
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return str(path)


def labels(path, **options):
    return [example.label for example in read_texts(path, **options)]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_three_layouts_hold_the_same_examples(tmp_path, suffix, ends, mark):
    rows = [("Été, 猫 🦉", "good"), ('said "so"', "bad"), ("third", "good")]
    lines = [json.dumps({"Text": text, "label": label}) for text, label in rows]
    contents = {
        ".jsonl": ["", *lines],
        ".csv": ["", "Text,label", *(f'"{t.replace(chr(34), chr(34) * 2)}",{v}' for t, v in rows)],
        ".tsv": ["", "n\tText\tlabel", *(f"7\t{text}\t{label}" for text, label in rows)],
    }
    for layout, content in contents.items():
        path = tmp_path / f"a{layout}{suffix}"
        path.write_bytes(COMPRESS[suffix](mark + ends.join(content).encode()))
        found = read_texts([str(path)])
        assert [(one.text, one.label) for one in found] == rows
        first = 2 if layout == ".jsonl" else 3
        assert [one.where for one in found] == [f"{path}, line {first + n}" for n in range(3)]
        assert {one.pair for one in found} == {None}


def test_a_json_list(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "a", "label": 1}, {"text": "b", "label": 0}], indent=1))
    assert [(e.text, e.label, e.where) for e in read_texts(path)] == [
        ("a", "1", f"{path}, item 1"),
        ("b", "0", f"{path}, item 2"),
    ]


def test_cells_over_several_lines_keep_their_line(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], ["one\ntwo", "x"], ["three", "y"]])
    assert [(e.text, e.where) for e in read_texts(path)] == [
        ("one\ntwo", f"{path}, line 2"),
        ("three", f"{path}, line 4"),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("premise", "hypothesis"),
        ("sentence1", "sentence2"),
        ("text", "pair"),
        ("question", "passage"),
    ],
)
def test_pairs_are_found_by_name(tmp_path, first, second):
    path = write_lines(tmp_path / "a.jsonl", {"id": 3, second: "b", first: "a", "label": 0})
    assert read_texts(path) == [LabelledText("a", "b", "0", f"{path}, line 1")]
    assert read_texts(path, text_field=first)[0].pair is None
    assert read_texts(path, text_field=second, pair_field=first)[0].text == "b"


def test_named_fields_and_fields_in_fields(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl", {"body": {"en": "cat"}, "text": "no", "stars": 3, "label": "no"}
    )
    (found,) = read_texts(path, text_field="body.en", label_field="stars")
    assert (found.text, found.label) == ("cat", "3")
    with pytest.raises(DataError, match=r"no field \"body.fr\"; it has body.en, text, stars"):
        read_texts(path, text_field="body.fr")


def test_a_folder_of_classes(tmp_path):
    for name, text in (("pos/0_9", "good\r\n"), ("pos/1_8", "fine"), ("neg/0_2", "bad\n")):
        path = tmp_path / "train" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "train" / "urls.txt").write_text("http://")
    (tmp_path / "train" / "unsup").mkdir()
    (tmp_path / "train" / "unsup" / "0.txt").write_text("no label")
    wanted = [("bad", "neg"), ("good", "pos"), ("fine", "pos")]
    found = read_texts(tmp_path / "train")
    assert [(one.text, one.label) for one in found] == wanted
    assert found[0].where == str(tmp_path / "train" / "neg" / "0_2.txt")
    parts = [tmp_path / "train" / "neg", tmp_path / "train" / "pos"]
    assert [(one.text, one.label) for one in read_texts(parts)] == wanted
    with pytest.raises(DataError, match="more than one folder below"):
        read_texts(tmp_path)
    (tmp_path / "train" / "neg" / "blank.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"blank.txt is empty"):
        read_texts(tmp_path / "train")


@pytest.mark.parametrize(
    ("raw", "kind", "wanted"),
    [
        (["b", "a"], "classes", ["b", "a"]),
        ([0, 1], "classes", ["0", "1"]),
        ([0.0, 1.0], "classes", ["0", "1"]),
        ([True, False], "classes", ["true", "false"]),
        (["3.5", "x"], "classes", ["3.5", "x"]),
        ([3.8, 5], "numbers", [3.8, 5.0]),
        ([["a", "b"], []], "multi-label", [("a", "b"), ()]),
        ([[7, 3], ["x"]], "multi-label", [("7", "3"), ("x",)]),
    ],
)
def test_the_kind_follows_from_the_labels(tmp_path, raw, kind, wanted):
    path = write_lines(tmp_path / "a.jsonl", *({"text": "t", "label": one} for one in raw))
    found = read_texts(path)
    assert [one.label for one in found] == wanted
    assert [type(one.label) for one in found] == [type(one) for one in wanted]
    assert label_kind(found) == kind


def test_the_kind_of_cells(tmp_path):
    path = tmp_path / "a.csv"
    for cells, wanted in (
        (["1", "0"], ["1", "0"]),
        (["007", "1.0"], ["007", "1.0"]),
        (["3.8", "5"], [3.8, 5.0]),
        (["2.10", "beta"], ["2.10", "beta"]),
        (["nan", "2.5"], ["nan", "2.5"]),
    ):
        path.write_text("label,text\n" + "".join(f"{cell},t\n" for cell in cells))
        assert labels(path) == wanted
    path.write_text('labels,text\n"a,b",t\n,t\nb,t\n')
    assert labels(path, kind="multi-label") == [("a", "b"), (), ("b",)]
    path.write_text("labels,text\na;b,t\n")
    assert labels(path, kind="multi-label", label_separator=";") == [("a", "b")]


def test_a_kind_that_is_given(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"text": "t", "label": 5}, {"text": "t", "label": "4"})
    assert labels(path, kind="numbers") == [5.0, 4.0]
    assert labels(path, kind="multi-label") == [("5",), ("4",)]
    with pytest.raises(DataError, match=r'no kind of label.*Did you mean "numbers"'):
        labels(path, kind="number")
    write_lines(tmp_path / "a.jsonl", {"text": "t", "label": 5}, {"text": "t", "label": "x"})
    with pytest.raises(DataError, match=r'label of .*line 2 is "x", not a number'):
        labels(path, kind="numbers")


def test_examples_without_labels(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"text": "t"}, {"text": "u", "label": "x"})
    assert labels(path, require_labels=False) == [None, "x"]
    with pytest.raises(DataError, match=r"line 1 has no label: its fields are text.*label_field"):
        labels(path)
    table = tmp_path / "a.csv"
    table.write_text("text,label\nt,\nu,2\n")
    assert labels(table, require_labels=False) == [None, "2"]
    with pytest.raises(DataError, match=r"label of .*line 2 is blank"):
        labels(table)
    with pytest.raises(DataError, match="No example has a label"):
        label_kind(read_texts(path, require_labels=False)[:1])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"text": "t"}, r"line 2 has no label: its fields are text\. Known names are label"),
        ({"text": "t", "label": None}, r"line 2 has no label: its field label is null"),
        ({"text": "t", "label": " "}, r"label of .*line 2 is blank"),
        ({"text": "t", "label": {"a": 1}}, r"label of .*line 2 is an object"),
        ({"text": "t", "label": ["x"]}, r"line 1 has a text as label while .*line 2 has a list"),
        ({"text": "t", "label": 2.5}, r"line 1 has a text as label while .*line 2 has a number"),
        ({"text": " \u3000", "label": "a"}, r'"text" of .*line 2 is blank'),
        ({"text": None, "label": "a"}, r'"text" of .*line 2 is null, not a text'),
        ({"text": ["t"], "label": "a"}, r'"text" of .*line 2 is a list, not a text'),
        ({"texts": "t", "label": "a"}, r"line 2 has no text: its fields are texts, label"),
        ({"text": "t", "pair": "u", "label": "a"}, r"line 1 is one text while .*line 2 is a pair"),
        ([1], r"line 2 is a list, not an object"),
        ({"text": "\ud83d", "label": "a"}, r"line 2 holds half a surrogate pair"),
    ],
)
def test_a_broken_line_is_one_message_with_its_place(tmp_path, second, message):
    path = write_lines(tmp_path / "a.jsonl", {"text": "t", "label": "a"}, second)
    with pytest.raises(DataError, match=message):
        read_texts(path)


def test_a_named_field_that_is_missing_suggests_the_nearest(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"sentence": "t", "label": "a"})
    with pytest.raises(DataError, match=r'no field "sentense".*Did you mean "sentence"\?.*text_fi'):
        read_texts(path, text_field="sentense")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "t", "label": 1}\n{"text":\n', r"line 2 is not valid JSON"),
        ("a.json", b'[{"text": "t",\n"label"}]', r"a.json, line 2 is not valid JSON"),
        ("a.jsonl", b'{"text": "t", "label": 1}\r\n"\xff"', r"line 2 is not valid UTF-8 \(0xff\)"),
        ("a.jsonl", b"", r"a.jsonl is empty"),
        ("a.csv", b"text,label\n", r"a.csv holds no record"),
        ("a.csv", b"text,text\na,b", r'line 1: the header has the column "text" twice'),
        ("a.csv", b"text,label\na,b\nc,d,e", r"line 3 has 3 cells, the header has 2 \(text, lab"),
        ("a.csv", b'text,label\n"a\nb,c\n', r"line 2 begins a row that is not valid CSV"),
        ("a.tsv", b"text\tlabel\na", r"line 2 has 1 cells, the header has 2"),
        ("a.txt", b"text", r"a.txt is none of .jsonl .json .csv .tsv"),
        ("a.jsonl", b"\xff\xfea\0", r"is UTF-16"),
        ("a.csv", b"text,label\na\0,b", r"binary file \(a zero byte in line 2\)"),
    ],
)
def test_a_broken_file_is_one_message(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_texts(path)


def test_paths_that_are_not_there(tmp_path):
    for paths, message in (
        ([], "No examples were given"),
        (tmp_path / "none.jsonl", "no file or folder"),
        (tmp_path / "*.jsonl", "No file matches"),
        (tmp_path, "has no examples"),
        ("-", "read from files"),
    ):
        with pytest.raises(DataError, match=message):
            read_texts(paths)


def test_folders_and_globs(tmp_path):
    for name in ("b", "a"):
        write_lines(tmp_path / f"{name}.jsonl", {"text": name, "label": 1})
    (tmp_path / "notes.txt").write_text("no record")
    for paths in (tmp_path, tmp_path / "*.jsonl", [tmp_path / "a.jsonl", tmp_path]):
        assert [one.text for one in read_texts(paths)] == ["a", "b"]


def test_a_multi_hot_list_is_refused(tmp_path):
    for label in ([0, 1, 0], [0.0, 1.0]):
        path = write_lines(tmp_path / "a.jsonl", {"text": "t", "labels": label})
        with pytest.raises(DataError, match="not a 0 or 1 for each class"):
            read_texts(path)


def test_names_in_natural_order():
    def example(label):
        return LabelledText("t", None, label, "here")

    assert label_names([example("10"), example("9"), example("9")]) == ("9", "10")
    assert label_names([example(("b", "a")), example(()), example(None)]) == ("a", "b")
    assert natural_order(["x10y", "x9y", "x", "-2"]) == ("-2", "x", "x9y", "x10y")
    assert natural_order(["1.5", "-3", "10", "2"]) == ("-3", "1.5", "2", "10")
    with pytest.raises(DataError, match="here is a number"):
        label_names([example(2.5)])
    with pytest.raises(DataError, match="different kinds"):
        label_kind([example("a"), example(2.5)])
