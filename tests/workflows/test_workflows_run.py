"""What `pretrain` and `finetune` return: held-out results, history, and a repr."""

from __future__ import annotations

import json

import numpy as np
import pytest
from run_settings import quiet, settings
from sklearn.metrics import accuracy_score, f1_score

from trivium.files import read_json_lines
from trivium.workflows.run import Run
from trivium.workflows.training import finetune, pretrain


def trained(kind, text, reviews, out):
    if kind == "classification":
        changes = settings(steps=4, eval_every=2, batch_tokens=None, eval_tokens=None)
        options = {"data": reviews, "out": out, "changes": changes, "console": quiet()}
        return finetune("classification", model="bert-tiny", **options)
    train = {"steps": 6, "batch_tokens": 8192, "log_every": 1, "eval_every": 1, "eval_tokens": 64}
    changes = settings(**train, save_every=1, keep_best=kind == "best-weights")
    if kind == "best-weights":
        changes["optimizer"] = {"lr": 0.5}  # more than it bears: the last weights are not the best
    if kind == "mixed":
        changes["mix"] = [
            {"name": "pages", "paths": [str(text)]},
            {"name": "reviews", "paths": [str(reviews)], "objective": {"kind": "classification"}},
        ]
        text = ()
    return pretrain("bert-tiny", data=text, out=out, changes=changes, console=quiet())


@pytest.mark.parametrize("kind", ["text", "best-weights", "classification", "mixed"])
def test_a_run_has_the_results_of_the_weights_that_it_keeps(kind, text, reviews, tmp_path):
    run = trained(kind, text, reviews, tmp_path / "run")
    assert isinstance(run, Run)
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert run.history == lines
    losses = {one["step"]: one["valid_loss"] for one in lines if "valid_loss" in one}
    if kind == "text":
        assert run.metrics == {"loss": losses[6]}
    elif kind == "best-weights":
        assert run.metrics["loss"] == min(losses.values()) < losses[6]
    else:
        rows = list(read_json_lines(run.path / "predictions.jsonl"))
        gold, predicted = ([row[key] for row in rows] for key in ("label", "predicted"))
        prefix = "reviews/" if kind == "mixed" else ""
        assert next(iter(run.metrics)) == f"{prefix}accuracy"
        assert run.metrics[f"{prefix}accuracy"] == pytest.approx(accuracy_score(gold, predicted))
        macro = f1_score(gold, predicted, average="macro")
        assert run.metrics[f"{prefix}macro_f1"] == pytest.approx(macro)
        assert run.metrics["loss"] in losses.values()
    shown = repr(run)
    assert str(run.path) in shown
    assert f"{np.round(next(iter(run.metrics.values())), 4):.4f}" in shown
    assert repr(run) == repr(Run(run.path))  # results are those of the files


def test_the_history_is_a_table_of_pandas(text, reviews, tmp_path):
    pandas = pytest.importorskip("pandas")
    run = trained("text", text, reviews, tmp_path / "run")
    frame = pandas.DataFrame(run.history)
    assert frame["valid_loss"].dropna().iloc[-1] == run.metrics["loss"]
    assert {"step", "tokens", "seconds", "train_loss", "lr"} <= set(frame)


def test_a_run_without_records_has_a_repr(tmp_path):
    assert repr(Run(tmp_path / "none")) == f"Run({str(tmp_path / 'none')!r})"
