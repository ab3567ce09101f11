"""Classes of texts and pairs, several labels, numbers: every kind of model learns them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labelled_examples import classes, figures, numbers, pairs, several, taught, write_lines

import trivium
from trivium.errors import DataError, RecipeError

# Whatever takes more than the usual steps from random weights.
PATIENT = {"gpt1-tiny": 120}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    write_lines(folder / "classes.jsonl", classes(210))
    write_lines(folder / "pairs.jsonl", pairs(210))
    write_lines(folder / "several.jsonl", several(260))
    write_lines(folder / "numbers.jsonl", numbers(260))
    return folder


@pytest.mark.parametrize(
    "preset",
    ["bert-tiny", "modernbert-tiny", "gpt1-tiny", "llama-tiny", "lstm-tiny"],
)
def test_classes_are_learned(preset: str, data: Path, tmp_path: Path) -> None:
    steps = PATIENT.get(preset, 60)
    run = taught("classification", preset, data / "classes.jsonl", tmp_path / "run", steps=steps)
    assert figures(run)["accuracy"] == 1.0
    model = trivium.load(run.path)
    assert model.settings.labels == ("cold", "plain", "warm")
    found = model.classify(["the man saw a red house", "our old town near the blue house"])
    assert [each.label for each in found] == ["warm", "cold"]
    assert all(each.score > 0.6 for each in found)


@pytest.mark.parametrize(("preset", "steps"), [("t5-tiny", 60), ("bart-tiny", 100)])
def test_encoder_decoders_write_the_class(
    preset: str, steps: int, data: Path, tmp_path: Path
) -> None:
    run = taught(
        "classification",
        preset,
        data / "classes.jsonl",
        tmp_path / "run",
        "tokenizer.kind=bpe",
        'task.prefix="sense: "',
        steps=steps,
    )
    assert figures(run)["accuracy"] == 1.0
    model = trivium.load(run.path)
    assert model.settings.task_options("classification")["prefix"] == "sense: "
    assert model.classify("a white house near it").label == "plain"
    # The name of the class is written, too.
    assert model.translate("sense: the man saw a red house") == "warm"


@pytest.mark.parametrize("preset", ["roberta-tiny", "gpt2-tiny", "bigru-tiny"])
def test_pairs_are_learned(preset: str, data: Path, tmp_path: Path) -> None:
    run = taught("classification", preset, data / "pairs.jsonl", tmp_path / "run")
    assert figures(run)["accuracy"] == 1.0
    model = trivium.load(run.path)
    assert model.classify("the old man left it", "a red house near our town").label == "yes"


@pytest.mark.parametrize("preset", ["bert-tiny", "gpt2-tiny"])
def test_several_labels_are_learned(preset: str, data: Path, tmp_path: Path) -> None:
    run = taught("classification", preset, data / "several.jsonl", tmp_path / "run")
    assert figures(run)["micro_f1"] == 1.0
    assert not json.loads((run.path / "evaluation.json").read_text())["mistakes"]
    found = trivium.load(run.path).classify("the red man saw a blue house")
    assert set(found.label.split(", ")) == {"blue", "red"}


@pytest.mark.parametrize("preset", ["bert-tiny", "llama-tiny"])
def test_numbers_are_learned(preset: str, data: Path, tmp_path: Path) -> None:
    run = taught("classification", preset, data / "numbers.jsonl", tmp_path / "run")
    assert figures(run)["pearson"] > 0.98
    answer = trivium.load(run.path).classify("the man saw four house")
    assert abs(answer.score - 2.0) < 0.4


def test_decoders_tell_the_next_token_too(data: Path, tmp_path: Path) -> None:
    """L = L_task + 0.5 L_LM unless told otherwise; with 0 the language model is only measured."""
    file = data / "classes.jsonl"
    both = taught("classification", "gpt2-tiny", file, tmp_path / "both")
    alone = taught("classification", "gpt2-tiny", file, tmp_path / "alone", "task.lm_weight=0")
    first, *_, last = both.read_metrics()
    assert first["train_loss"] == pytest.approx(
        first["train_task"] + 0.5 * first["train_lm"], rel=1e-4
    )
    forgot = alone.read_metrics()[-1]
    assert "train_lm" not in alone.read_metrics()[0]
    assert last["valid_lm"] < forgot["valid_lm"] - 0.5
    assert figures(alone)["accuracy"] == 1.0
    assert trivium.load(both.path).score("the man") < 0.0


def test_balanced_weights_count_every_class_alike(tmp_path: Path) -> None:
    """Where nothing can be learned, the class with a tenth of the texts is still told half the
    time."""
    rows = [{"text": "the same text", "label": "rare" if n % 10 else "usual"} for n in range(100)]
    rows = [{**row, "text": f"{row['text']} {n % 7}"} for n, row in enumerate(rows)]
    train = write_lines(tmp_path / "train.jsonl", rows)
    found = {}
    for weights in ("none", "balanced"):
        run = taught(
            "classification",
            "bert-tiny",
            train,
            tmp_path / weights,
            f"task.class_weights={weights}",
            "data.validation=0.0",
            steps=40,
        )
        scores = trivium.load(run.path).classify("the same text").scores
        found[weights] = scores["usual"]
    assert found["none"] == pytest.approx(0.1, abs=0.06)
    assert found["balanced"] == pytest.approx(0.5, abs=0.2)


def test_everything_is_written_down(data: Path, tmp_path: Path) -> None:
    run = taught("classification", "bert-tiny", data / "classes.jsonl", tmp_path / "run", steps=9)
    told = json.loads((run.path / "evaluation.json").read_text(encoding="utf-8"))
    assert told["task"] == "classification"
    assert (told["metric"], told["score"]) == ("accuracy", told["figures"]["accuracy"])
    assert told["names"] == ["cold", "plain", "warm"]
    count = run.read_facts()["valid_examples"]
    assert sum(map(sum, told["confusion"])) == count == told["figures"]["count"]
    lines = (run.path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line) for line in lines]
    assert len(answers) == count
    right = sum(one["label"] == one["predicted"] for one in answers)
    assert right / count == pytest.approx(told["score"])
    wrong = {(one["text"], one["predicted"]) for one in answers if one["label"] != one["predicted"]}
    assert {(one["text"], one["predicted"]) for one in told["mistakes"]} == wrong
    last = run.read_metrics()[-1]
    assert last["valid_accuracy"] == pytest.approx(told["score"])
    assert sorted(path.name for path in run.path.iterdir()) == [
        *("checkpoints", "evaluation.json", "facts.json", "hugging_face.json", "metrics.jsonl"),
        *("model.safetensors", "predictions.jsonl", "recipe.toml", "report.html", "spec.json"),
        "tokenizer.json",
    ]


def test_what_a_model_cannot_do_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for preset, file, change, message in (
        ("t5-tiny", "several", "seed=0", "writes the name of a class"),
        ("ngram-tiny", "classes", "seed=0", "a model of n-grams"),
        ("elmo-tiny", "classes", "seed=0", "two directions that share the head"),
        ("bert-tiny", "classes", "task.lm_weight=0.5", "task.lm_weight is for a model that tells"),
        ("bert-tiny", "classes", "task.prefix=x", "task.prefix is for an encoder-decoder"),
        ("bert-tiny", "numbers", "task.class_weights=balanced", "task.class_weights is for"),
    ):
        with pytest.raises(RecipeError, match=message):
            taught("classification", preset, data / f"{file}.jsonl", out, change)
        assert not out.exists()


def test_one_label_is_no_class(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": "good"} for n in range(20)]
    data = write_lines(tmp_path / "same.jsonl", rows)
    with pytest.raises(DataError, match='have the label "good": classification needs two'):
        taught("classification", "bert-tiny", data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
