"""Held-out examples on which a metric is undefined: strict JSON, and weights chosen by the loss."""

from __future__ import annotations

import json

import pytest
from killed_runs import PRESETS, write_examples
from run_settings import quiet, settings

from trivium.objectives import Objective
from trivium.workflows.training import pretrain

TASKS = [kind for kind in PRESETS if Objective.kinds[kind].labelled]


def strict(text: str):
    """JSON without the NaN and Infinity that Python writes and no other program reads."""

    def refuse(name: str):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def degenerate(kind: str, rows: list[dict]) -> dict[str, list[dict]]:
    """Held-out sets of one example, of equal ones, and of a single class."""
    sets = {"one": rows[:1], "equal": [rows[0]] * 3}
    if kind == "kto":
        for label in (True, False):
            sets[f"label-{label}"] = [
                {**row, "prompt": f"held out {number}", "label": label}
                for number, row in enumerate(rows[:4])
            ]
    elif kind == "classification":
        sets["class"] = [row for row in rows if row["label"] == "a"][:4]
    elif kind == "tagging":
        sets["no-chunks"] = [{"words": row["words"], "tags": ["O"] * 6} for row in rows[:4]]
    return sets


@pytest.mark.parametrize("kind", TASKS)
def test_metrics_of_degenerate_held_out_sets_are_json(kind, text, tmp_path):
    file = write_examples(tmp_path, text)[kind]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for name, held_out in degenerate(kind, rows).items():
        valid = tmp_path / f"{name}.jsonl"
        valid.write_text("\n".join(map(json.dumps, held_out)))
        train = [row for row in rows if row not in held_out]
        file.write_text("\n".join(map(json.dumps, train)))
        tree = {
            "objective": {"kind": kind},
            "model": {"preset": PRESETS[kind]},
            "data": {"paths": [str(file)], "validation": [str(valid)]},
        }
        changes = settings(steps=2, log_every=1, eval_every=1, save_every=2, batch_examples=4)
        changes["train"] |= {"batch_tokens": None, "eval_tokens": None}
        run = pretrain(tree, out=tmp_path / name, changes=changes, console=quiet())
        lines = run.metrics_file.read_text().splitlines()
        assert [strict(line) for line in lines] == run.read_metrics(), name
        evaluation = strict((run.path / "evaluation.json").read_text())
        for line in (run.path / "predictions.jsonl").read_text().splitlines():
            strict(line)
        strict(run.metadata_file.read_text())
        [checkpoint] = run.checkpoints.glob("step-*")
        assert strict((checkpoint / "state.json").read_text())["best_step"] > 0
        assert evaluation["values"].keys() >= {evaluation["main"]}
        assert run.report.is_file()


@pytest.mark.parametrize("label", [True, False])
def test_an_undefined_auc_leaves_the_choice_to_the_loss(label, text, tmp_path):
    file = write_examples(tmp_path, text)["kto"]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    valid = tmp_path / "valid.jsonl"
    held_out = [{**row, "prompt": f"held out {n}", "label": label} for n, row in enumerate(rows)]
    valid.write_text("\n".join(map(json.dumps, held_out)))
    tree = {
        "objective": {"kind": "kto"},
        "model": {"preset": "gpt2-tiny"},
        "data": {"paths": [str(file)], "validation": [str(valid)]},
        "optimizer": {"lr": 3e-3},
    }
    changes = settings(steps=6, log_every=1, eval_every=1, save_every=1, batch_examples=8)
    changes["train"] |= {"batch_tokens": None, "eval_tokens": None}
    console = quiet()
    run = pretrain(tree, out=tmp_path / "run", changes=changes, console=console)
    losses = {r["step"]: r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r}
    assert not any("valid_auc" in record for record in run.read_metrics())
    state = json.loads((run.checkpoints / "step-00000006" / "state.json").read_text())
    assert state["best_step"] == min(losses, key=losses.__getitem__)
    printed = console.file.getvalue()
    assert "auc is undefined on these validation examples" in printed
    assert "auc undefined" in " ".join(printed.split()), printed
    assert "nan" not in printed
