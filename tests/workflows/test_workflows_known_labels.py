"""A model of labels that is trained on keeps the labels that it knows, and says what it does."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from run_settings import quiet

import trivium
from trivium.workflows.training import finetune

TAGS = {"a": "B-PER", "b": "B-LOC", "c": "B-ORG", "d": "B-MISC"}


def write(file, task, labels):
    """40 examples with labels a, b, ... in turn."""
    lines = []
    for number in range(40):
        label = labels[number % len(labels)]
        if task == "tagging":
            words, tags = ["word", str(number), label], ["O", "O", TAGS[label]]
            lines.append({"words": words, "tags": tags})
        else:
            text = f"item {number} {label}"
            lines.append({"text": text, "label": [label] if task == "multi-label" else label})
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def train(task, model, data, out, *, lr=0.0, console=None, **objective):
    """One step of fine-tuning, which changes nothing by default."""
    changes = {"optimizer": {"lr": lr or 1e-12}, "objective": objective}
    changes["train"] = {"steps": 1, "device": "cpu", "precision": "fp32", "batch_examples": 8}
    kind = "tagging" if task == "tagging" else "classification"
    console = console or quiet()
    return finetune(kind, model=model, data=data, out=out, changes=changes, console=console)


def logits_of(lm, task, count):
    head = "tagger" if task == "tagging" else "classifier"
    ids = torch.arange(30).reshape(3, 10) + 5
    logits = lm.logits(ids, torch.ones_like(ids), head=head)
    assert logits.shape[-1] == count
    return logits


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Trained models of the labels a, b and c; also as Hugging Face folders with other orders."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    for task in ("classes", "multi-label", "tagging"):
        data = write(folder / f"{task}.jsonl", task, "abc")
        run = train(task, "bert-tiny", data, folder / task, lr=1e-2)
        found[task, "run"] = run.path
        hf = trivium.load(run.path).save_hf(folder / f"{task}-hf")
        config = json.loads((hf / "config.json").read_text())
        names = list(config["id2label"].values())[::-1]  # no alphabetical order
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: index for index, name in enumerate(names)}
        for name in ("finetuning_task", "task_specific_params"):
            config.pop(name, None)
        (hf / "config.json").write_text(json.dumps(config))
        found[task, "hf"] = hf
    return found


@pytest.mark.parametrize("labels", ["ab", "abc", "abcd", "ad", "dcb"])
@pytest.mark.parametrize("origin", ["run", "hf"])
@pytest.mark.parametrize("task", ["classes", "multi-label", "tagging"])
def test_known_labels_keep_their_rows(task, origin, labels, models, tmp_path):
    base = trivium.load(models[task, origin])
    before = base.settings.labels
    console, data = quiet(), write(tmp_path / "data.jsonl", task, labels)
    run = train(task, models[task, origin], data, tmp_path / "run", console=console)
    lm, printed = trivium.load(run.path), console.file.getvalue()
    after = lm.settings.labels
    assert after[: len(before)] == before
    new = {"d"} & {*labels}
    wanted = {TAGS[one] for one in new} | {f"I-{TAGS[one][2:]}" for one in new}
    assert {*after[len(before) :]} == (wanted if task == "tagging" else new)
    old, now = logits_of(base, task, len(before)), logits_of(lm, task, len(after))
    assert torch.allclose(now[..., : len(before)], old, atol=1e-5)
    name = "heads.tagger" if task == "tagging" else "heads.classifier"
    rows = [m.state_dict() for m in (base.module, lm.module)]
    for part in ("classifier.weight", "classifier.bias"):
        kept = rows[1][f"{name}.{part}"][: len(before)]
        assert torch.allclose(kept, rows[0][f"{name}.{part}"], atol=1e-9)
    shown = (TAGS[one] if task == "tagging" else one for one in "abc" if one not in labels)
    for unseen in shown:
        assert f'"{unseen}"' in printed.split("not in the data")[1]
    assert ("added with new weights" in printed) == bool(new)
    assert ("newly initialized" in printed) is False


def test_labels_without_one_that_is_known_start_new_and_the_lost_ones_are_named(models, tmp_path):
    console, data = quiet(), write(tmp_path / "data.jsonl", "classes", "xyz")
    run = train("classes", models["classes", "run"], data, tmp_path / "run", console=console)
    assert trivium.load(run.path).settings.labels == ("x", "y", "z")
    printed = console.file.getvalue()
    assert "the head classifier is newly initialized" in printed
    assert 'none of the model\'s labels occurs in the data, so all are replaced: "a", "b", "c"' in (
        printed
    )


def test_numbered_labels_of_transformers_are_the_numbers(models, tmp_path):
    """LABEL_0 and LABEL_1, which a config.json with two labels leaves out."""
    hf = models["classes", "hf"]
    config = transformers.AutoConfig.from_pretrained(hf)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        hf, num_labels=2, ignore_mismatched_sizes=True,
        id2label={0: "LABEL_0", 1: "LABEL_1"}, label2id={"LABEL_0": 0, "LABEL_1": 1},
    )  # fmt: skip
    assert config.num_labels == 3
    model.save_pretrained(tmp_path / "hf")
    transformers.AutoTokenizer.from_pretrained(hf).save_pretrained(tmp_path / "hf")
    base, data = trivium.load(tmp_path / "hf"), write(tmp_path / "data.jsonl", "classes", "01")
    lm = trivium.load(train("classes", tmp_path / "hf", data, tmp_path / "run").path)
    assert lm.settings.labels == ("0", "1")
    assert torch.allclose(logits_of(lm, "classes", 2), logits_of(base, "classes", 2), atol=1e-5)


def test_weights_of_classes_follow_the_labels_of_the_model(models, tmp_path):
    data = write(tmp_path / "data.jsonl", "classes", "aad")
    run = train("classes", models["classes", "run"], data, tmp_path / "run",
                class_weights="balanced")  # fmt: skip
    weights = run.read_metadata()["recipe"]["objective"]["class_weights"]
    counts = [27, 13]
    assert weights == pytest.approx([40 / 2 / counts[0], 1.0, 1.0, 40 / 2 / counts[1]])
    message = r'2 numbers for 4 classes: "a", "b", "c", "d"'
    with pytest.raises(trivium.errors.RecipeError, match=message):
        train("classes", run.path, data, tmp_path / "other", class_weights=[1.0, 2.0])


def test_another_pooling_is_kept_with_the_head(tmp_path):
    first = write(tmp_path / "first.jsonl", "classes", "abc")
    base = train("classes", "bert-tiny", first, tmp_path / "base", lr=1e-2, pooling="mean")
    run = train("classes", base.path, write(tmp_path / "d.jsonl", "classes", "abd"),
                tmp_path / "run")  # fmt: skip
    old, now = (logits_of(trivium.load(r.path), "classes", n) for r, n in ((base, 3), (run, 4)))
    assert torch.allclose(now[:, :3], old, atol=1e-5)


def test_a_model_that_generates_labels_keeps_the_names(tmp_path):
    first = write(tmp_path / "first.jsonl", "classes", "abc")
    base = train("classes", "t5-tiny", first, tmp_path / "base", lr=1e-3)
    console = quiet()
    run = train("classes", base.path, write(tmp_path / "d.jsonl", "classes", "ab"),
                tmp_path / "run", console=console)  # fmt: skip
    assert trivium.load(run.path).settings.labels == ("a", "b", "c")
    assert 'not in the data, so the model may forget them: "c"' in console.file.getvalue()


def test_such_a_run_resumes(models, tmp_path):
    data = write(tmp_path / "data.jsonl", "classes", "ad")
    run = train("classes", models["classes", "run"], data, tmp_path / "run")
    finetune("", out=run.path, resume=True, changes={"train.steps": 2}, console=quiet())
    assert trivium.load(run.path).settings.labels == ("a", "b", "c", "d")
