from __future__ import annotations

import gzip
import json

import pytest

from trivium.data.labelled import PairSource, SourceTarget, read_pairs
from trivium.errors import DataError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(paths, **options):
    return read_pairs([PairSource(paths, **options)])


def test_two_aligned_files(tmp_path):
    first = write(tmp_path / "a.en", "\ufeffGo.\r\n\r\nHi.\u2028there\r\n\r\n")
    second = str(tmp_path / "a.fr.gz")
    (tmp_path / "a.fr.gz").write_bytes(gzip.compress(b"Va !\n \nSalut !"))
    assert read([first, second]) == [
        SourceTarget("Go.", ("Va !",), f"{first}, line 1"),
        SourceTarget("Hi.\u2028there", ("Salut !",), f"{first}, line 3"),
    ]
    assert read([second, first])[0].source == "Va !"
    assert read(str(tmp_path / "a.*"))[0].source == "Go."


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\nc\n", "x\ny\n", r"a.en has 3 lines and .*a.fr has 2; line by line"),
        (
            "a\nb\nc\n",
            "x\n\ny\nz\n",
            r"3 lines and .* has 4.*a.fr, line 2 is blank while .*a.en, line 2 is not",
        ),
        ("a\n\nc\n", "x\ny\nz\n", r"a.en, line 2 is blank while .*a.fr, line 2 is not"),
        ("a\n", " \n", r"a.fr is empty"),
    ],
)
def test_misaligned_files_are_one_message(tmp_path, source, target, message):
    paths = [write(tmp_path / "a.en", source), write(tmp_path / "a.fr", target)]
    with pytest.raises(DataError, match=message):
        read(paths)


@pytest.mark.parametrize("name", ["a.tsv", "fra.txt"])
def test_tab_separated(tmp_path, name):
    path = write(tmp_path / name, 'Go.\tVa !\tCC-BY\nSay "hi\tDis "salut\n\n')
    assert [(one.source, one.targets, one.where) for one in read(path)] == [
        ("Go.", ("Va !",), f"{path}, line 1"),
        ('Say "hi', ('Dis "salut',), f"{path}, line 2"),
    ]


def test_tab_separated_with_a_header(tmp_path):
    path = write(tmp_path / "a.tsv", "id\tsource\ttarget\n7\ta\tb\n")
    assert read(path) == [SourceTarget("a", ("b",), f"{path}, line 2")]
    path = write(tmp_path / "a.tsv", "en\tfr\na\tb\n")
    assert read(path, source_field="fr", target_field="en")[0].source == "b"
    assert len(read(path)) == 2


def test_records(tmp_path):
    records = [
        {"id": 0, "target": "b", "source": "a"},
        {"source": "c", "target": ["d", "e"]},
        {"translation": {"en": "g", "fr": "h"}, "source": "i", "target": "j"},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records)))
    assert [(one.source, one.targets) for one in read(path)] == [
        ("a", ("b",)),
        ("c", ("d", "e")),
        ("i", ("j",)),
    ]
    write(tmp_path / "a.jsonl", json.dumps(records[2]))
    fields = {"source_field": "translation.en", "target_field": "translation.fr"}
    assert read(path, **fields)[0].targets == ("h",)
    assert read(path, source_field="translation.en")[0].targets == ("j",)
    table = write(tmp_path / "a.csv", 'question,answer\n"one, two",three\n')
    assert (read(table)[0].source, read(table)[0].targets) == ("one, two", ("three",))


def test_tasks_are_mixed_with_their_prefixes(tmp_path):
    one = write(tmp_path / "a.tsv", "a\tb\n")
    other = write(tmp_path / "b.jsonl", '{"question": "c", "answer": "d"}')
    found = read_pairs([PairSource(one, "translate: "), PairSource([other], prefix="answer: ")])
    assert [(p.source, p.prefix, p.group) for p in found] == [
        ("translate: a", "translate: ", "a"),
        ("answer: c", "answer: ", "c"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "a\tb\nc\n", r'line 2 has no tab between source and target: "c"'),
        ("a.tsv", "a\tb\nc\t \n", r"target of .*line 2 is blank"),
        ("a.tsv", "a\tb\n\tc\n", r"source of .*line 2 is blank"),
        ("a.txt", "a\n", r"line 1 has no tab.*two aligned files"),
        ("a.jsonl", '{"source": "a", "goal": "b"}', r"has no source and target: its fields are so"),
        ("a.jsonl", '{"source": "a", "target": []}', r'"target" of .*line 1 is an empty list'),
        ("a.jsonl", '{"source": "a", "target": ["b", ""]}', r'"target" of .*line 1 is blank'),
        ("a.jsonl", '{"source": "a", "target": {"b": 1}}', r'"target" of .*line 1 is an object'),
    ],
)
def test_broken_pairs_are_one_message(tmp_path, name, text, message):
    path = write(tmp_path / name, text)
    with pytest.raises(DataError, match=message):
        read(path)


def test_sources_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="No pairs were given"):
        read_pairs([])
    paths = [write(tmp_path / f"a.{name}", "a\n") for name in ("en", "fr", "de")]
    with pytest.raises(DataError, match="which lines belong together"):
        read(paths)
    record = write(tmp_path / "a.jsonl", '{"a": "b", "source": "c"}')
    with pytest.raises(DataError, match=r'no field "d"; it has a, source.*target_field'):
        read(record, source_field="a", target_field="d")
    with pytest.raises(DataError, match=r'no field "sorce".*Did you mean "source"'):
        read(record, source_field="sorce", target_field="a")


def test_a_number_is_a_target(tmp_path):
    file = tmp_path / "reviews.jsonl"
    file.write_text('{"text": "a fine film", "label": 1}\n', encoding="utf-8")
    source = PairSource([str(file)], "rate: ", source_field="text", target_field="label")
    (found,) = read_pairs([source])
    assert (found.source, found.targets) == ("rate: a fine film", ("1",))
