"""The mistakes that a model was surest of, and what all results of evaluations have in common."""

from __future__ import annotations

import numpy as np

from trivium.evaluate.answer_metrics import answer_metrics
from trivium.evaluate.classification_metrics import (
    classification_metrics,
    multi_label_metrics,
    regression_metrics,
)
from trivium.evaluate.generation_metrics import (
    exact_match_metrics,
    summary_metrics,
    translation_metrics,
)
from trivium.evaluate.metrics import LOWER_IS_BETTER, Metrics
from trivium.evaluate.mistakes import Mistake, mistakes_table, worst_mistakes
from trivium.evaluate.tagging_metrics import tagging_metrics


def test_the_surest_mistakes_come_first():
    chance = np.random.default_rng(0)
    gold, predicted = (chance.integers(0, 3, 97).astype(str).tolist() for _ in range(2))
    confidence = chance.random(97).round(1).tolist()  # With ties.
    texts = [f"text {number}" for number in range(97)]
    found = worst_mistakes(gold, predicted, confidence, texts=texts, count=11)
    wrong = [place for place in range(97) if gold[place] != predicted[place]]
    expected = sorted(wrong, key=lambda place: (-confidence[place], place))[:11]
    assert [mistake.text for mistake in found] == [texts[place] for place in expected]
    first = expected[0]
    assert found[0] == Mistake(
        f"example {first + 1}", texts[first], gold[first], predicted[first], confidence[first]
    )


def test_no_mistakes():
    assert worst_mistakes(["a"], ["a"], [0.9], texts=["x"]) == ()
    assert worst_mistakes([], [], [], texts=[]) == ()
    assert len(mistakes_table([])) == 1


def test_what_is_wrong_and_where_can_be_given():
    found = worst_mistakes(
        ["the tower", "x"],
        ["tower", "y"],
        [0.9, float("nan")],
        texts=["q1", "q2"],
        where=["a.json, line 3", "a.json, line 4"],
        wrong=[False, True],
    )
    assert [mistake.where for mistake in found] == ["a.json, line 4"]


def test_a_confidence_that_is_no_number_comes_last():
    found = worst_mistakes(["a"] * 3, ["b"] * 3, [float("nan"), 0.1, 0.2], texts=["x", "y", "z"])
    assert [mistake.text for mistake in found] == ["z", "y", "x"]


def test_long_texts_are_cut_in_the_table():
    (head, row) = mistakes_table([Mistake("f, line 1", "word\n" * 99, "good", "bad", 0.98765)])
    assert head == ("Where", "Text", "Right", "Predicted", "Confidence")
    assert len(row[1]) == 200
    assert row[1].endswith("...")
    assert "\n" not in row[1]
    assert (row[0], *row[2:]) == ("f, line 1", "good", "bad", "0.988")


def test_all_results_look_alike():
    results: list[Metrics] = [
        classification_metrics([0, 1], [1, 1], ["a", "b"]),
        multi_label_metrics([[0, 1]], [[1, 1]], ["a", "b"]),
        regression_metrics([1.0, 2.0], [1.0, 3.0]),
        tagging_metrics([["B-a", "O"]], [["B-a", "O"]]),
        tagging_metrics([["X", "Y"]], [["X", "X"]]),
        answer_metrics(["a"], [["b"]]),
        answer_metrics(["a"], [["b"]], no_answer=[0.5]),
        translation_metrics(["a"], ["b"]),
        summary_metrics(["a"], ["b"]),
        exact_match_metrics(["a"], ["b"]),
    ]
    for result in results:
        name, value = result.main
        assert result.to_dict()[name] == value
        assert name not in LOWER_IS_BETTER
        assert all(type(number) in (int, float) for number in result.to_dict().values())
        head, *rows = result.table()
        assert rows
        assert all(len(row) == len(head) for row in rows)
        assert all(type(cell) is str for row in rows for cell in row)
