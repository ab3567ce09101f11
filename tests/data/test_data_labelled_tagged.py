from __future__ import annotations

import json

import numpy as np
import pytest

from trivium.data.labelled import (
    TaggedSentence,
    are_chunk_tags,
    read_tagged,
    repair_iob,
    tag_names,
)
from trivium.errors import DataError

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

\u3000 SYM O O
. . O O
"""
IOB2 = """# sent_id = 1
# text = 10 Jim
1\t10\tO\t-\t-
2\tJim\tB-PER\t-\t-

# text = #
1\t#\tO\t-\t-
"""
CONLLU = """# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tVB\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\tCase=Acc\t1\tobj\t_\t_
2.1\tva\tir\tVERB\tVB\t_\t_\t_\t_\t_

1\t_\t_\tPUNCT\t.\t_\t0\troot\t_\t_
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_columns(tmp_path):
    path = write(tmp_path / "a.conll", CONLL)
    found = read_tagged([path])
    assert found == [
        TaggedSentence(("EU", "rejects"), ("B-ORG", "O"), f"{path}, line 3", (3, 4)),
        TaggedSentence(("\u3000", "."), ("O", "O"), f"{path}, line 6", (6, 7)),
    ]
    assert found[0].where_word(1) == f"{path}, line 4"
    for column in (1, -3):
        assert read_tagged(path, column=column)[0].tags == ("NNP", "VBZ")
    assert read_tagged(path, column=0, word_column=1)[0].tags == ("EU", "rejects")
    assert tag_names(found) == ("B-ORG", "O")


def test_hash_signs_are_words_where_they_are_words(tmp_path):
    path = write(tmp_path / "a.conll", "#tag\tO\n#\tB-X\n\n# a comment\nb\tO\n")
    assert [one.words for one in read_tagged(path)] == [("#tag", "#"), ("b",)]
    write(tmp_path / "a.conll", "b O\n# O\n\n# id 9 of 3\n#tag O\n")
    assert [one.words for one in read_tagged(path)] == [("b", "#"), ("#tag",)]


def test_numbered_columns(tmp_path):
    path = write(tmp_path / "a.iob2", IOB2)
    assert [(one.words, one.tags, one.lines) for one in read_tagged(path)] == [
        (("10", "Jim"), ("O", "B-PER"), (3, 4)),
        (("#",), ("O",), (7,)),
    ]
    path = write(tmp_path / "b.txt", "1 CD O\n2 CD O\n\n7 CD B-X\n")
    assert [one.words for one in read_tagged(path)] == [("1", "2"), ("7",)]


@pytest.mark.parametrize("name", ["a.conllu", "a.txt"])
def test_conllu(tmp_path, name):
    path = write(tmp_path / name, CONLLU)
    found = read_tagged(path)
    assert [(one.words, one.tags) for one in found] == [
        (("vamos", "nos"), ("VERB", "PRON")),
        (("_",), ("PUNCT",)),
    ]
    assert found[0].lines == (3, 4)
    assert read_tagged(path, column="feats")[0].tags == ("_", "Case=Acc")
    assert read_tagged(path, column="lemma")[0].tags == ("ir", "nosotros")
    with pytest.raises(DataError, match=r'line 4: the word "nos" has no tag'):
        read_tagged(path, column="xpos")
    with pytest.raises(DataError, match=r'no column "uposs".*Did you mean "upos"'):
        read_tagged(path, column="uposs")


def test_json_lines(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        '{"tokens": ["a", "b"], "ner_tags": [0, 7]}\n{"w": ["c"], "tags": ["X"], "words": ["d"]}',
    )
    found = read_tagged(path)
    assert [(one.words, one.tags) for one in found] == [(("a", "b"), ("0", "7")), (("d",), ("X",))]
    assert found[1].where_word(0) == f"{path}, line 2, word 1"
    write(tmp_path / "a.jsonl", '{"tags": ["X"], "w": ["c"], "words": ["d"]}')
    assert read_tagged(path, words_field="w", tags_field="words")[0].tags == ("d",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "a\tO\nb\n", r'line 2 has 1 column, line 1 has 2: "b"'),
        ("a.conll", "\na O\nb c O\n", r"line 3 has 3 columns, line 2 has 2.*parted by spaces"),
        ("a.conll", "a\tO\nb\t\n", r'line 2: the word "b" has no tag in column -1'),
        ("a.conll", "a\tO\n\tO\n", r"line 2 has no word in column 0"),
        ("a.conll", "a\nb\n", r"word and tag are both in column 0 of 1"),
        ("a.conll", "# only\n\n", r"holds no sentence"),
        ("a.conllu", "a\tO\n", r"it is not CoNLL-U"),
        ("a.jsonl", {"words": ["a", "b"], "tags": ["X"]}, r"line 1 has 2 words and 1 tags"),
        ("a.jsonl", {"words": [], "tags": []}, r"line 1 has no words"),
        ("a.jsonl", {"words": "a b", "tags": ["X"]}, r'"words" of .*line 1 is a text, not a list'),
        ("a.jsonl", {"words": ["a", ""], "tags": ["X", "Y"]}, r'Item 2 .*"words" .*is blank'),
        ("a.jsonl", {"words": ["a"], "tags": [None]}, r'Item 1 .*"tags" .*is null'),
        ("a.jsonl", {"words": ["a"]}, r"has no tags: its fields are words.*tags_field"),
    ],
)
def test_broken_files_are_one_message(tmp_path, name, text, message):
    path = write(tmp_path / name, text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(DataError, match=message):
        read_tagged(path)


def test_columns_that_are_not_there(tmp_path):
    path = write(tmp_path / "a.conll", CONLL)
    with pytest.raises(DataError, match="has 4 columns, 0 to 3; the tag cannot be in column 4"):
        read_tagged(path, column=4)
    with pytest.raises(DataError, match="the word cannot be in column 9"):
        read_tagged(path, word_column=9)


def test_which_tags_are_chunk_tags():
    assert are_chunk_tags(["O", "B-PER", "I-PER"])
    assert are_chunk_tags(["O", "I-PER"])
    assert are_chunk_tags(["O", "B", "I"])
    assert are_chunk_tags(["O", "S-a-b", "B-x", "I-x", "E-x"])
    for others in (["O"], [], ["NOUN"], ["O", "B-PER", "X"], ["O", "-LRB-", "I-"], ["0", "1"]):
        assert not are_chunk_tags(others)


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("I-X I-X O I-X", "B-X I-X O B-X"),
        ("B-X I-Y I-Y", "B-X B-Y I-Y"),
        ("I-X B-X I-X", "B-X B-X I-X"),
        ("O I O I I", "O B O B I"),
        ("B-X E-X E-X I-X E-X S-Y E-Y", "B-X E-X S-X B-X E-X S-Y S-Y"),
        ("", ""),
    ],
)
def test_repairs(tags, wanted):
    assert repair_iob(tags.split()) == tuple(wanted.split())


def test_repair_leaves_the_chunks_that_the_scorer_finds():
    get_entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    generator = np.random.default_rng(0)
    names = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    changed = 0
    for _ in range(307):
        tags = [names[n] for n in generator.integers(0, len(names), 13)]
        mended = repair_iob(tags)
        changed += list(mended) != tags
        assert get_entities(list(mended)) == get_entities(tags)
        assert repair_iob(mended) == mended
    assert changed > 200
