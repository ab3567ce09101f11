"""Regression: labels of any size are learned, and every number is in the user's units."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
import transformers
from run_settings import quiet

import trivium
from trivium.data.records import RecordOptions
from trivium.objectives.classification import TextClassification
from trivium.objectives.task_metrics import compute_regression_metrics
from trivium.workflows.evaluate import evaluate
from trivium.workflows.training import finetune

pytestmark = pytest.mark.filterwarnings("ignore:no Hugging Face class has a classifier and")

SCALES = {
    "hundreds": (500, 400),
    "thousandths": (0.001, 0.0005),
    "offset": (900, 3),
    "unit": (0, 1),
}
CASES = [
    *(("bert-tiny", scale) for scale in SCALES),
    *((preset, "offset") for preset in ("gpt2-tiny", "llama-tiny", "lstm-tiny")),
]


def rows(scale: str, count: int = 160, pairs: bool = False):
    """Texts whose number is told by how many of their words are "high"."""
    mean, deviation = SCALES[scale]
    chance = random.Random(3)
    for number in range(count):
        share = chance.choice([0, 1, 2, 3, 4])
        words = ["high"] * share + ["low"] * (4 - share)
        chance.shuffle(words)
        label = mean + deviation * (share - 2) / 2 + 1e-9
        second = {"pair": f"again {words[0]}"} if pairs else {}
        yield {"text": f"item {number} price {' '.join(words)}", "label": label} | second


def train(folder, scale, model="bert-tiny", *, pairs=False, epochs=12, **changes):
    """A regression of a tiny model."""
    folder.mkdir(exist_ok=True)
    data = folder / "data.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows(scale, pairs=pairs)))
    new = not (isinstance(model, str) and model in trivium.presets)
    own = {} if new else {"tokenizer": {"vocab_size": 300}}
    changes = {
        **own, "data": {"length": 48}, "optimizer": {"lr": 2e-3},
        "train": {"epochs": epochs, "batch_examples": 16, "device": "cpu", "precision": "fp32"},
        "objective": {"label_kind": "regression"}, **changes,
    }  # fmt: skip
    return finetune("classification", model=model, data=data, out=folder / "run", changes=changes,
                    validation=0.2, overwrite=True, console=quiet())  # fmt: skip


@pytest.mark.parametrize(("preset", "scale"), CASES)
def test_labels_of_any_size_are_learned(preset, scale, tmp_path):
    run = train(tmp_path, scale, preset)
    result = json.loads((run.path / "evaluation.json").read_text())
    assert result["main"] == "r2"
    assert result["values"]["r2"] > 0.9
    mean, deviation = SCALES[scale]
    lm = trivium.load(run.path)
    found = [
        one.score for one in lm.classify(["item price high high high high", "low low low low"])
    ]
    assert found[0] - found[1] > deviation  # of 2 deviations
    assert abs(np.mean(found) - mean) < deviation


@pytest.fixture(scope="module", params=["bert-tiny", "gpt2-tiny"])
def hundreds(request, tmp_path_factory):
    """A regression around 500 with a deviation of 400."""
    return train(tmp_path_factory.mktemp("regression"), "hundreds", request.param)


def test_transformers_gives_the_numbers_of_the_user(hundreds, tmp_path):
    lm = trivium.load(hundreds.path)
    texts = ["item 3 price high low low high", "low low", "item high"]
    ours = [one.score for one in lm.classify(texts)]
    folder = lm.save_hf(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-5)):
        hf = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype)
        theirs = [hf(**tokenizer(text, return_tensors="pt")).logits.item() for text in texts]
        assert ours == pytest.approx(theirs, rel=tolerance)
    again = trivium.load(folder)
    assert [one.score for one in again.classify(texts)] == pytest.approx(ours, rel=1e-5)
    logits = lm.logits([list(tokenizer(texts[0])["input_ids"])], head="classifier")
    assert logits.item() == pytest.approx(ours[0], rel=1e-5)


def test_llama_has_no_bias_to_fold_the_mean_into_and_says_so(tmp_path):
    lm = trivium.load(train(tmp_path, "hundreds", "llama-tiny", epochs=1).path)
    with pytest.warns(UserWarning, match=r"add \d+.*, the mean of the training labels"):
        folder = lm.save_hf(tmp_path / "hf")
    texts = ["item 3 price high low low high", "low low"]
    ours = [one.score for one in lm.classify(texts)]
    again = trivium.load(folder)
    assert [one.score for one in again.classify(texts)] == pytest.approx(ours, rel=1e-5)
    hf = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = [hf(**tokenizer(text, return_tensors="pt")).logits.item() for text in texts]
    mean, _ = again.settings.label_scale
    assert [one + mean for one in theirs] == pytest.approx(ours, rel=1e-5)


@pytest.mark.parametrize("scale", ["hundreds", "thousandths", "offset"])
def test_a_regression_that_is_trained_on_predicts_the_same_before(hundreds, scale, tmp_path):
    """Also from a Hugging Face folder, whose numbers have no scale."""
    lm = trivium.load(hundreds.path)
    texts = ["item 3 price high low low high", "low low"]
    ours = [one.score for one in lm.classify(texts)]
    for name, model in {"run": hundreds.path, "hf": lm.save_hf(tmp_path / "hf")}.items():
        (tmp_path / name / "on").mkdir(parents=True)
        run = train(tmp_path / name / "on", scale, model, optimizer={"lr": 1e-12},
                    epochs=0.1, objective={})  # fmt: skip
        after = trivium.load(run.path)
        assert after.settings.label_kind == "regression"
        assert [one.score for one in after.classify(texts)] == pytest.approx(ours, rel=1e-4)


def test_whole_numbers_stay_numbers_where_a_regression_is_trained_on(hundreds, tmp_path):
    data = tmp_path / "whole.jsonl"
    lines = ({"text": f"item {n} high", "label": 100 + n % 5} for n in range(40))
    data.write_text("\n".join(map(json.dumps, lines)))
    run = finetune(
        "classification", model=hundreds.path, data=data, out=tmp_path / "run", console=quiet(),
        changes={"train": {"steps": 2, "device": "cpu"}},
    )  # fmt: skip
    assert trivium.load(run.path).settings.label_kind == "regression"


def test_evaluation_and_predictions_are_in_the_units_of_the_user(hundreds):
    data = hundreds.path.parent / "data.jsonl"
    metrics = evaluate(hundreds.path, data)
    assert metrics.values["mae"] > 1  # of hundreds
    assert metrics.values["r2"] > 0.8
    lines = (hundreds.path / "predictions.jsonl").read_text().splitlines()
    for one in map(json.loads, lines):
        assert 50 < one["label"] < 950
        assert -100 < one["predicted"] < 1100


def test_constant_labels_divide_nothing_by_zero(tmp_path):
    data = tmp_path / "data.jsonl"
    lines = ({"text": f"item {n}", "label": 0.1} for n in range(40))
    data.write_text("\n".join(map(json.dumps, lines)))
    run = finetune(
        "classification", model="bert-tiny", data=data, out=tmp_path / "run", console=quiet(),
        changes={"train": {"steps": 3, "device": "cpu"}, "objective": {"label_kind": "regression"}},
    )  # fmt: skip
    result = json.loads((run.path / "evaluation.json").read_text())
    assert (result["main"], result["higher_is_better"]) == ("mse", False)
    assert trivium.load(run.path).classify("item 3").score == pytest.approx(0.1, abs=0.05)


def test_pairs_are_standardised_like_texts(tmp_path):
    run = train(tmp_path, "hundreds", pairs=True)
    result = json.loads((run.path / "evaluation.json").read_text())
    assert result["values"]["r2"] > 0.9
    assert trivium.load(run.path).settings.reads_pairs


@pytest.mark.parametrize("scale", SCALES)
def test_the_mean_and_the_deviation_are_those_of_the_training_labels(scale, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows(scale))))
    objective = TextClassification(label_kind="regression")
    examples = list(objective.read([str(data)], RecordOptions()))
    settings = objective.add_settings(trivium.interop.settings.Settings(), examples)
    mean, deviation = objective.with_label_statistics(settings, examples).label_scale
    labels = np.array([row["label"] for row in rows(scale)])
    assert (mean, deviation) == pytest.approx((labels.mean(), labels.std()), rel=1e-9)


def test_the_best_weights_are_those_of_the_best_r2():
    gold = np.array([100.0, 500.0, 900.0])
    correlated, near = (
        compute_regression_metrics(gold, gold / 1000),
        compute_regression_metrics(gold, gold + 9),
    )
    assert correlated.values["pearson"] == pytest.approx(1.0)
    assert near.score > correlated.score
