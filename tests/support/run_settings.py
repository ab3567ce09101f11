"""Settings of runs that train for a second, and what two runs must have in common."""

from __future__ import annotations

import io
import os
import signal
from typing import Any

import pytest
from rich.console import Console

from trivium.train import trainer as trainer_module
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import Interrupted


def quiet() -> Console:
    """A console that keeps what is printed in `console.file`."""
    return Console(file=io.StringIO(), width=200)


def settings(**train: Any) -> dict[str, Any]:
    """Changes for a run of 24 small steps."""
    return {
        "tokenizer": {"vocab_size": 300},
        "data": {"length": 32},
        "model": {"dropout": 0.1},
        "train": {
            "steps": 24,
            "batch_tokens": 32 * 7,
            "micro_batch_tokens": 96,
            "log_every": 3,
            "eval_every": 8,
            "save_every": 4,
            "eval_tokens": 320,
            "device": "cpu",
            "precision": "fp32",
            **train,
        },
    }


def lasting(run: RunFolder) -> list[dict[str, float]]:
    """The metrics without what a clock decides."""
    return [
        {key: value for key, value in record.items() if key not in ("seconds", "tokens_per_second")}
        for record in run.read_metrics()
    ]


def assert_equal_runs(run: RunFolder, whole: RunFolder) -> None:
    """Their metrics and weights are the same to the last bit."""
    assert lasting(run) == lasting(whole)
    assert run.weights.read_bytes() == whole.weights.read_bytes()


def interrupt_and_resume(monkeypatch, start, out, *steps):
    """Send this process a signal in each of these steps, and resume after each."""
    original = trainer_module.forward_backward
    for number, stop in enumerate(steps):
        kind = signal.SIGINT if number % 2 else signal.SIGTERM

        def signalled(trainer, batch, step, stop=stop, kind=kind):
            if step == stop:
                os.kill(os.getpid(), kind)
            return original(trainer, batch, step)

        with monkeypatch.context() as patch:
            patch.setattr(trainer_module, "forward_backward", signalled)
            with pytest.raises(Interrupted) as caught:
                start(out, number > 0)
        assert caught.value.step == stop + 1
        assert f"interrupted; step {stop + 1} is saved. To resume:\n  trivium " in str(caught.value)
        assert str(caught.value).endswith(f" --resume --out {out}")
    return start(out, True)
