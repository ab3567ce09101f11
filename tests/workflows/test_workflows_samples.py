"""`train.samples`: outputs of the model at every evaluation."""

from __future__ import annotations

import pytest
from run_settings import quiet, settings

import trivium
from trivium.files import read_json_lines
from trivium.train.trainer import Interrupted
from trivium.workflows.training import finetune, pretrain


def test_samples_of_text_are_written_and_change_no_step(text, tmp_path):
    runs = {}
    for name, samples in (("with", True), ("without", False)):
        changes = settings(steps=4, log_every=2, eval_every=2, save_every=4, samples=samples)
        out = tmp_path / name
        runs[name] = pretrain("gpt2-tiny", data=text, out=out, changes=changes, console=quiet())
    records = read_json_lines(runs["with"].samples_file)
    assert [record["step"] for record in records] == [2, 4]
    (last,) = [[{"step": 4} | one for one in record["samples"]] for record in records[1:]]
    assert last == runs["with"].read_metadata()["samples"]  # those of the finished model
    assert last[0]["output"]
    assert not runs["without"].samples_file.exists()
    losses = [[one.get("valid_loss") for one in run.history] for run in runs.values()]
    assert losses[0] == losses[1]


def test_samples_of_a_task_are_examples_with_predictions(reviews, tmp_path):
    changes = {"train": {"steps": 4, "eval_every": 2, "samples": True, "device": "cpu"}}
    run = finetune(
        "classification",
        model="bert-tiny",
        data=reviews,
        out=tmp_path / "run",
        changes=changes,
        console=quiet(),
    )
    first, last = read_json_lines(run.samples_file)
    assert (first["step"], last["step"], len(last["samples"])) == (2, 4, 3)
    assert {"text", "label", "predicted"} <= last["samples"][0].keys()


def test_a_resumed_run_forgets_samples_of_later_steps(text, tmp_path):
    class StopAfter(trivium.Callback):
        def on_evaluate(self, record, lm):
            if record["step"] == 4:
                raise KeyboardInterrupt

    changes = settings(steps=6, eval_every=2, save_every=3, samples=True)
    out = tmp_path / "run"
    options = {"changes": changes, "console": quiet(), "callbacks": [StopAfter()]}
    with pytest.raises(Interrupted):
        pretrain("gpt2-tiny", data=text, out=out, **options)
    run = pretrain("", out=out, resume=True, console=quiet())
    assert [record["step"] for record in read_json_lines(run.samples_file)] == [2, 4, 6]
