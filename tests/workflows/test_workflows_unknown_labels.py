"""`eval` counts labels that a model does not know; `check` gives advice that its task takes."""

from __future__ import annotations

import json
import re

import pytest
from run_settings import quiet

from trivium.config import iter_keys
from trivium.errors import RecipeError
from trivium.objectives import LabelledObjective, task_kinds
from trivium.objectives.example_checks import check_examples
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import build_recipe
from trivium.workflows.evaluate import evaluate, make_objective
from trivium.workflows.training import finetune

FORMS = ("classes", "multi-label", "chunks", "tags", "generated")


def row(form, number, label):
    if form in ("chunks", "tags"):
        tag = f"B-{label}" if form == "chunks" else label
        return {"words": ["x", str(number), label], "tags": ["O", "O", tag]}
    text = f"item {number} {label}"
    return {"text": text, "label": [label] if form == "multi-label" else label}


def write(file, form, labels, count=24):
    rows = [row(form, n, labels[n % len(labels)]) for n in range(count)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder, runs = tmp_path_factory.mktemp("models"), {}
    for form in FORMS:
        task = "tagging" if form in ("chunks", "tags") else "classification"
        runs[form] = finetune(
            task, model="t5-tiny" if form == "generated" else "bert-tiny", out=folder / form,
            data=write(folder / f"{form}.jsonl", form, ["a", "b"]), console=quiet(),
            changes={"train": {"steps": 4, "device": "cpu", "precision": "fp32"}},
        ).path  # fmt: skip
    return runs


@pytest.mark.parametrize("form", FORMS)
def test_unknown_labels_are_wrong_and_counted(form, models, tmp_path):
    known = evaluate(models[form], write(tmp_path / "known.jsonl", form, ["a", "b"], 12))
    some = evaluate(models[form], write(tmp_path / "some.jsonl", form, ["a", "b", "new"], 18))
    (note,) = [one for one in some.notes if "does not know" in one]
    shown = "B-new" if form == "chunks" else "new"
    assert note == (
        f'6 of 18 examples have labels that the model does not know, and count as wrong: "{shown}"'
    )
    assert not any("does not know" in one for one in known.notes)
    assert len(some.predictions) == 18
    key = {"multi-label": "subset_accuracy"}.get(form, "accuracy")
    wrong = [
        one for one in some.predictions
        if "new" in str(one.get("label", one.get("tags")))
    ]  # fmt: skip
    assert len(wrong) == 6
    assert all(one["predicted"] != one.get("label", one.get("tags")) for one in wrong)
    if form in ("classes", "generated", "multi-label"):
        right = sum(one["predicted"] == one["label"] for one in some.predictions)
        assert some.values[key] == pytest.approx(right / 18)


@pytest.mark.parametrize("form", ["classes", "tags"])
def test_bad_records_can_be_skipped_in_an_evaluation(form, models, tmp_path):
    file = write(tmp_path / "bad.jsonl", form, ["a", "b"], 12)
    bad = {"words": ["x"], "tags": ["O", "O"]} if form == "tags" else {"text": "x", "label": None}
    file.write_text(file.read_text() + "\n" + json.dumps(bad))
    metrics = evaluate(models[form], file, changes=["data.bad_records=skip"])
    assert len(metrics.predictions) == 12
    assert any("1 of 13 records are skipped" in note for note in metrics.notes)
    with pytest.raises(RecipeError, match='"stop" or "skip"'):
        evaluate(models[form], file, changes=["data.bad_records=jump"])


# Examples of every task, of which one has hardly any of its label, and one is broken.
ROWS = {
    "classification": [{"text": f"t{n}", "label": "rare" if n == 7 else "ab"[n % 2]}
                       for n in range(150)],
    "multi-label": [{"text": f"t{n}", "label": ["rare"] if n == 7 else ["ab"[n % 2]]}
                    for n in range(150)],
    "tagging": [{"words": ["x", f"y{n}"], "tags": ["O", "RARE" if n == 7 else "AB"[n % 2]]}
                for n in range(150)],
}  # fmt: skip
OTHERS = [
    {"text": f"t{n}", "query": f"q{n}", "source": f"s{n}", "target": "x", "prompt": f"p{n}",
     "passage": f"x{n}", "positive": f"x{n}", "chosen": "c", "rejected": "r", "label": n % 2,
     "completion": "c", "response": "c", "answer": "a", "reference": "a",
     "messages": [{"role": "user", "content": "h"}, {"role": "assistant", "content": "i"}]}
    for n in range(20)
]  # fmt: skip
ROWS |= {task: OTHERS for task in task_kinds() if task not in ROWS}


@pytest.mark.parametrize("case", ROWS)
def test_advice_names_keys_that_the_task_takes(case, tmp_path):
    task = "classification" if case == "multi-label" else case
    file = tmp_path / "x.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS[case])) + '\n{"broken": 1}\n')
    objective = make_objective(task, {}, [])
    try:
        findings = check_examples(objective, [str(file)], 0.1)
    except Exception as error:  # of a task that reads other columns: its message is advice too
        texts = [str(error)]
    else:
        texts = [one.advice for one in findings]
    if case in ("classification", "multi-label", "tagging"):
        (rare,) = [one for one in findings if one.check.startswith("labels of under")]
        assert rare.count == 1
        assert ("class_weights" in rare.advice) == (case == "classification")
    known = {key.name for key in iter_keys(Recipe)}
    known |= {f"objective.{key}" for key in LabelledObjective.kinds[task].model_fields}
    for text in texts:
        for key, value in re.findall(r"((?:objective|data|train)\.\w+)(?:=([\w-]+))?", text):
            assert key in known, (text, key)
            if value and value != "NAME":
                changes = [f"objective.kind={task}", f"{key}={value}"]
                preset = "bert-tiny" if task in ("classification", "tagging", "qa") else "gpt2-tiny"
                build_recipe({"model": {"preset": preset}}, changes)


@pytest.mark.parametrize("count", [2, 77])
def test_the_threshold_of_rare_labels_is_the_one_that_is_named(count, tmp_path):
    file = tmp_path / "data.jsonl"
    rows = [{"text": f"t{n}", "label": f"l{n % count}"} for n in range(count * 20)]
    rows += [{"text": f"more {n}", "label": "few"} for n in range(2)]
    file.write_text("\n".join(map(json.dumps, rows)))
    findings = check_examples(make_objective("classification", {}, []), [str(file)], 0.0)
    (rare,) = [one for one in findings if one.check.startswith("labels of under")]
    share = float(rare.check.removeprefix("labels of under ").removesuffix("%")) / 100
    labels = [one["label"] for one in rows]
    assert rare.count == sum(labels.count(one) < share * len(rows) for one in {*labels})
    assert share == pytest.approx(min(0.02, 0.5 / (count + 1)), rel=0.02)
