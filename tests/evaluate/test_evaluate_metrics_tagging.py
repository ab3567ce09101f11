"""Tags against seqeval and scikit-learn called directly, and chunks told by conlleval's rules."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from seqeval import metrics as seqeval_metrics
from seqeval.scheme import BILOU, IOB2, IOBES
from sklearn.metrics import accuracy_score, f1_score

from trivium.errors import DataError, MissingExtraError
from trivium.evaluate.classification_metrics import ClassificationMetrics
from trivium.evaluate.tagging_metrics import ChunkMetrics, tagging_metrics

TYPES = ("PER", "LOC", "creative-work")
Sentences = list[list[str]]


def tags_of(prefixes: str) -> list[str]:
    return ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in TYPES)]


def random_pair(prefixes: str, seed: int, *, right: float = 0.6) -> tuple[Sentences, Sentences]:
    """Tags in any order, and such as agree with them at times."""
    chance = np.random.default_rng(seed)
    tags = tags_of(prefixes)
    gold = [
        [tags[place] for place in chance.integers(0, len(tags), length)]
        for length in chance.integers(0, 13, 29)
    ]
    predicted = [
        [tag if chance.random() < right else tags[chance.integers(len(tags))] for tag in sentence]
        for sentence in gold
    ]
    return gold, predicted


def chunks_by_conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """What the program of the CoNLL-2000 task counts in IOB tags: a chunk begins where B- stands,
    or I- of another type than the tag before."""
    found, start, kind = set(), None, None
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        goes_on = prefix == "I" and name == kind
        if start is not None and not goes_on:
            found.add((kind, start, place))
            start = kind = None
        if prefix != "O" and not goes_on:
            start, kind = place, name
    return found


@pytest.mark.parametrize("seed", range(8))
def test_chunks_agree_with_conlleval_and_seqeval(seed: int):
    gold, predicted = random_pair("BI", seed)
    found = tagging_metrics(gold, predicted)
    assert isinstance(found, ChunkMetrics)
    hits = right = guessed = 0
    for words, tags in zip(gold, predicted):
        ours, theirs = chunks_by_conlleval(words), chunks_by_conlleval(tags)
        hits, right, guessed = hits + len(ours & theirs), right + len(ours), guessed + len(theirs)
    assert found.precision == pytest.approx(hits / guessed)
    assert found.recall == pytest.approx(hits / right)
    assert found.f1 == pytest.approx(2 * hits / (right + guessed))
    assert found.main == ("f1", found.f1)
    compare_with_seqeval(found, gold, predicted)


def compare_with_seqeval(
    found: ChunkMetrics, gold: Sentences, predicted: Sentences, **mode: object
) -> None:
    report = seqeval_metrics.classification_report(
        gold, predicted, output_dict=True, zero_division=0, **mode
    )
    assert found.f1 == pytest.approx(report["micro avg"]["f1-score"])
    assert found.precision == pytest.approx(report["micro avg"]["precision"])
    assert found.recall == pytest.approx(report["micro avg"]["recall"])
    assert found.macro_f1 == pytest.approx(report["macro avg"]["f1-score"])
    assert found.accuracy == pytest.approx(seqeval_metrics.accuracy_score(gold, predicted))
    assert {one.name for one in found.per_type} == set(report) - {
        "micro avg",
        "macro avg",
        "weighted avg",
    }
    for one in found.per_type:
        expected = report[one.name]
        assert one.precision == pytest.approx(expected["precision"])
        assert one.recall == pytest.approx(expected["recall"])
        assert one.f1 == pytest.approx(expected["f1-score"])
        assert one.support == expected["support"]


@pytest.mark.parametrize(("prefixes", "scheme"), [("BI", IOB2), ("BIES", IOBES), ("BILU", BILOU)])
@pytest.mark.parametrize("seed", range(3))
def test_strict_chunks_agree_with_seqeval(prefixes: str, scheme: type, seed: int):
    gold, predicted = random_pair(prefixes, seed)
    found = tagging_metrics(gold, predicted, strict=True)
    assert isinstance(found, ChunkMetrics)
    compare_with_seqeval(found, gold, predicted, mode="strict", scheme=scheme)


@pytest.mark.parametrize("seed", range(3))
def test_chunks_with_ends_agree_with_seqeval(seed: int):
    gold, predicted = random_pair("BIES", seed)
    found = tagging_metrics(gold, predicted)
    assert isinstance(found, ChunkMetrics)
    compare_with_seqeval(found, gold, predicted)
    named = str.maketrans("ES", "LU")
    renamed = [
        [[tag[0].translate(named) + tag[1:] for tag in tags] for tags in part]
        for part in (gold, predicted)
    ]
    assert tagging_metrics(*renamed) == found


def test_a_chunk_that_begins_inside_counts_unless_strict():
    gold, predicted = [["B-PER", "I-PER", "O"]], [["I-PER", "I-PER", "O"]]
    assert tagging_metrics(gold, predicted).main == ("f1", 1.0)
    assert tagging_metrics(gold, predicted, strict=True).main == ("f1", 0.0)


def test_a_prefix_that_does_not_occur_still_says_what_is_strict():
    sentences = [["B-PER", "O"]]
    strict = tagging_metrics(sentences, sentences, names=tags_of("BIES"), strict=True)
    assert strict.main == ("f1", 0.0)  # A single word has S- there.


def test_chunks_without_a_type():
    found = tagging_metrics([["B", "I", "O", "B"]], [["B", "I", "O", "O"]])
    assert isinstance(found, ChunkMetrics)
    assert (found.precision, found.recall) == (1.0, 0.5)


@pytest.mark.parametrize("strict", [False, True])
def test_no_chunks_at_all(strict: bool):
    found = tagging_metrics([["O", "O"], ["O"]], [["O", "O"], ["O"]], strict=strict)
    assert isinstance(found, ChunkMetrics)
    assert (found.f1, found.macro_f1, found.accuracy) == (0.0, 0.0, 1.0)
    assert found.per_type == ()
    assert found.table() == [("Type", "Precision", "Recall", "F1", "Support")]


def test_chunks_of_one_side_only():
    found = tagging_metrics([["O", "O"]], [["B-PER", "O"]])
    assert isinstance(found, ChunkMetrics)
    assert (found.precision, found.recall, found.f1, found.accuracy) == (0.0, 0.0, 0.0, 0.5)
    assert found.table()[1] == ("PER", "0.0000", "0.0000", "0.0000", "0")


@pytest.mark.parametrize("seed", range(3))
def test_other_tags_are_counted_one_by_one(seed: int):
    chance = np.random.default_rng(seed)
    tags = ["NOUN", "VERB", "X", "-LRB-", "PRP$"]
    gold, predicted = (
        [[tags[chance.integers(5)] for _ in range(length)] for length in (7, 0, 11, 3)]
        for _ in range(2)
    )
    found = tagging_metrics(gold, predicted, names=[*tags, "SYM"])
    assert isinstance(found, ClassificationMetrics)
    right, guessed = ([tag for tags in part for tag in tags] for part in (gold, predicted))
    assert found.main == ("accuracy", accuracy_score(right, guessed))
    assert found.macro_f1 == pytest.approx(f1_score(right, guessed, average="macro"))
    assert found.names == (*tags, "SYM")


def test_a_tag_that_the_model_does_not_know_counts_as_a_mistake():
    found = tagging_metrics([["NOUN", "NEW"]], [["NOUN", "NOUN"]], names=["NOUN", "VERB"])
    assert isinstance(found, ClassificationMetrics)
    assert found.accuracy == 0.5
    assert found.names == ("NOUN", "VERB", "NEW")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O"], True),
        (["B-a b", "I-a b", "O"], True),
        (["B", "I"], True),
        (["NOUN", "O"], False),
        (["S-", "V-", "Df"], False),
        (["I", "X"], False),
        (["B-\u4eba"], True),
    ],
)
def test_chunk_tags_are_told_from_others(tags: list[str], expected: bool):
    found = tagging_metrics([tags], [tags])
    assert isinstance(found, ChunkMetrics) is expected


def test_mixed_tags_are_an_error_unless_the_kind_is_given():
    gold, predicted = [["B-PER", "I_PER"]], [["B-PER", "O"]]
    with pytest.raises(DataError, match='"I_PER"'):
        tagging_metrics(gold, predicted)
    with pytest.raises(DataError, match='"I_PER": no chunk tags'):
        tagging_metrics(gold, predicted, chunks=True)
    assert tagging_metrics(gold, predicted, chunks=False).main == ("accuracy", 0.5)


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "no sentences"),
        ([[]], [[]], "no tags"),
        ([["O"]], [], "0 predictions for 1 sentences"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "sentence 2 has 2 words and 1 predicted"),
    ],
)
def test_sentences_that_cannot_be_compared(gold: list, predicted: list, message: str):
    with pytest.raises(DataError, match=message):
        tagging_metrics(gold, predicted)


def test_a_missing_library_is_told_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(MissingExtraError, match=r"trivium\[metrics\]"):
        tagging_metrics([["O"]], [["O"]])
