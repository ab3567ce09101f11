"""Runs with the optimizers of papers resume as all others do."""

from __future__ import annotations

import pytest
from run_settings import assert_equal_runs, interrupt_and_resume, quiet, settings

from trivium.workflows.training import pretrain


@pytest.mark.parametrize("kind", ["adadelta", "adafactor", "adagrad", "lamb", "sgd"])
def test_an_interrupted_run_ends_bit_equal(kind, text, tmp_path, monkeypatch):
    changes = settings(steps=6, log_every=1, eval_every=6, save_every=2)
    changes |= {"optimizer": {"kind": kind, "lr": 1.0 if kind == "adadelta" else 0.01}}
    if kind == "sgd":
        changes["optimizer"]["momentum"] = 0.9

    def start(out, resume):
        return pretrain(
            "" if resume else "bert-tiny", data=() if resume else text, out=out, resume=resume,
            changes=() if resume else changes, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 1, 2), whole)
    losses = [one["train_loss"] for one in whole.read_metrics() if "train_loss" in one]
    assert losses[-1] < losses[0]
