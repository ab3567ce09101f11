"""Reranking: examples, the loss, the metrics by their formulas, and a model that learns to rank."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from overfit_tasks import overfit

from trivium.errors import DataError
from trivium.interop.settings import Settings
from trivium.objectives.reranking import QueryDocument, Reranking, compute_ranking_metrics

sklearn = pytest.importorskip("sklearn.metrics")


def read(tmp_path, records):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return list(Reranking().read([str(path)]))


def test_a_negative_makes_a_second_example_and_labels_are_kept(tmp_path):
    both = read(tmp_path, [{"query": "q", "positive": "yes", "negative": "no"}])
    assert [(one.document, one.label) for one in both] == [("yes", 1.0), ("no", 0.0)]
    [graded] = read(tmp_path, [{"query": "q", "passage": "d", "score": 0.25}])
    assert (graded.label, graded.is_relevant) == (0.25, False)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"query": "q", "passage": "d"}, "no label and no negative"),
        ({"query": "q", "passage": "d", "label": 1, "negative": "n"}, "both a label and"),
        ({"query": "q", "passage": "d", "label": 2}, "is 2, but must be a number from 0 to 1"),
        ({"query": "q", "passage": "d", "label": "good"}, "'good', but must be a number"),
        ({"query": "q", "passage": "d", "label": math.nan}, "but must be a number"),
        ({"query": "q", "passage": " ", "label": 1}, "passage"),
    ],
)
def test_bad_records_are_refused_with_file_and_line(record, message, tmp_path):
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path, [record])
    assert "line 1" in str(error.value)


def test_one_label_for_all_examples_is_refused():
    examples = [QueryDocument("q", f"d{n}", 1.0, "here") for n in range(3)]
    with pytest.raises(DataError, match="all 3 examples have the label 1"):
        Reranking().add_settings(Settings(), examples)


def test_ranking_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(3)
    for size in (2, 7, 23):
        scores, labels = rng.normal(size=size), (rng.random(size) < 0.4).astype(float)
        labels[rng.integers(size)] = 1.0
        found = compute_ranking_metrics(scores, labels)
        ndcg = sklearn.ndcg_score(labels[None], scores[None], k=10)
        assert found["ndcg@10"] == pytest.approx(ndcg)
        precision = sklearn.average_precision_score(labels, scores)
        assert found["average_precision"] == pytest.approx(precision)
        rank = 1 + int(np.argmax(labels[np.argsort(-scores)]))
        assert found["mrr@10"] == pytest.approx(1 / rank if rank <= 10 else 0.0)


def test_equal_scores_do_not_look_like_success():
    found = compute_ranking_metrics(np.zeros(4), np.array([1.0, 0.0, 0.0, 0.0]))
    assert found["mrr@10"] == 0.25


EXAMPLES = [
    QueryDocument(f"who {n}", f"the {n} {word}", float(word == "right"), f"line {n}")
    for n in ("one", "two", "three", "four")
    for word in ("wrong", "right", "other")
]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_model_learns_to_rank(family):
    objective, lm, loss = overfit(Reranking(), EXAMPLES, family, lr=3e-3)
    assert loss < 0.05
    metrics = objective.evaluate(lm, EXAMPLES)
    assert metrics.values == {"mrr@10": 1.0, "ndcg@10": 1.0, "average_precision": 1.0}
    ranked = lm.rerank("who two", ["the two wrong", "the two right", "the two other"], top_k=2)
    assert (ranked[0].index, len(ranked)) == (1, 2)
    assert ranked[0].score > 0.9 > 0.1 > ranked[1].score


def test_the_loss_is_the_binary_cross_entropy_of_the_scores():
    objective, lm, _ = overfit(Reranking(), EXAMPLES, "bert", steps=3)
    scores = torch.tensor(objective.predict(lm, EXAMPLES), dtype=torch.float64)
    labels = torch.tensor([one.label for one in EXAMPLES], dtype=torch.float64)
    expected = torch.nn.functional.binary_cross_entropy(scores, labels)
    from trivium.objectives import to_device

    rows = objective.encode(EXAMPLES, lm)
    tensors = to_device(rows.take(range(len(EXAMPLES))).to_batch(), torch.device("cpu"))
    with torch.no_grad():
        found = objective.loss(lm.module, tensors)["loss"] / len(EXAMPLES)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_without_a_query_that_has_both_kinds_the_metrics_are_undefined():
    objective, lm, _ = overfit(Reranking(), EXAMPLES, "bert", steps=1)
    some = [one for one in EXAMPLES if one.is_relevant]
    assert all(map(math.isnan, objective.evaluate(lm, some).values.values()))
