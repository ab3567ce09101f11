"""Losses that stand still or rise are called out once; healthy ones are not."""

from __future__ import annotations

import math

import pytest
from run_settings import quiet

from trivium.objectives import Objective
from trivium.objectives.causal import Causal
from trivium.progress import ProgressLine
from trivium.report import read_run, summarize
from trivium.train.gradient_spikes import is_spike
from trivium.train.run_folder import RunFolder
from trivium.train.run_warnings import RunHistory, RunWarnings
from trivium.train.terminal_log import TerminalLog
from trivium.train.trackers import MetricsFile
from trivium.train.train_config import TrainConfig

UNIGRAM = 7.0


def record(number: int, loss: float, tokens: int = 2000) -> dict[str, float]:
    """The log line of step 10, 20, ... of a run with 50 steps of warm-up."""
    step = 10 * number
    return {
        "step": step,
        "tokens": step * tokens,
        "train_loss": loss,
        "lr": min(step, 50) / 50,
        "tokens_per_second": 1000.0,
    }


def warnings(losses: list[float], patience: float = 200, tokens: int = 2000) -> list[str]:
    history = RunHistory(Causal(), UNIGRAM, patience)
    found = (
        history.find_warning(record(n, loss, tokens)) for n, loss in enumerate(losses, start=1)
    )
    return [f"{10 * n}: {text}" for n, text in enumerate(found, start=1) if text]


def test_a_run_that_stands_still_is_called_out_once():
    for loss in (7.5, 7.1, 6.9):
        [one] = warnings([loss] * 200)
        assert one.startswith(f"250: the training loss {loss:.2f} is not clearly below the unigram")
        assert "baseline (7.00) 200 steps after the warm-up: the run is stuck" in one
    [one] = warnings([7.1] * 200, 700)
    assert one.startswith("750: ")
    stuck, diverged = warnings([7.1] * 200 + [9.0] * 5)
    assert "the run is stuck" in stuck
    assert "the run diverges" in diverged
    below = [6.5] * 200
    assert warnings(below) == warnings([7.1] * 20 + below) == warnings([7.1] * 200, math.inf) == []
    # Small steps are fewer.
    assert warnings([7.1] * 200, tokens=512)[0].startswith("450: ")
    # Evaluations and the end of a warm-up that never ends have no say.
    assert RunHistory(Causal(), UNIGRAM, 200).find_warning({"step": 10, "valid_loss": 9.0}) is None


def test_every_objective_says_how_long_it_may_stand_at_the_baseline():
    assert Objective.advice().steps_to_beat_unigram == 700  # and so one of your own
    unwatched = [
        kind
        for kind, one in Objective.kinds.items()
        if one.advice().steps_to_beat_unigram == math.inf
    ]
    assert unwatched == ["sentence-pairs"]


def test_a_healthy_post_norm_decoder_is_not_called_stuck():
    # gpt1-tiny by default, every 50 steps after the warm-up, its baseline at 7.21.
    curve = [7.32, 7.28, 7.13, 7.03, 6.85, 6.70, 6.59, 6.47, 6.39, 6.23, 6.16, 6.14, 6.08, 6.05]
    losses = [7.35] * 5 + [loss - 0.21 for loss in curve for _ in range(5)]
    assert warnings(losses, Objective.kinds["causal"].advice().steps_to_beat_unigram) == []


def test_a_loss_that_rises_for_good_is_called_out():
    noisy = [4.0, 5.1, 4.2, 5.2, 5.3, 4.1] * 9
    assert warnings([6.0, *noisy]) == []
    [one] = warnings([6.0, 4.0, 5.1, 5.2, 5.3, 5.4, 4.0, 5.5, 5.5, 5.5])
    assert one.startswith("50: the training loss rose to 5.30 from 4.00: the run diverges. Usual")


def test_warnings_are_shown_logged_and_reported_and_not_repeated_when_resumed(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    run = RunFolder(tmp_path)
    for numbers, shown in ((range(1, 40), 1), (range(40, 50), 0)):
        console = quiet()
        metadata = {"unigram_loss": UNIGRAM, "peak_flops": None}
        terminal = TerminalLog(ProgressLine(console), TrainConfig(eval_every=1000), metadata)
        warnings = RunWarnings(run, RunHistory(Causal(), UNIGRAM, 200))
        warnings.on_start(None, None)  # type: ignore[arg-type]
        for number in numbers:
            line = record(number, 7.1)
            for callback in (warnings, MetricsFile(run), terminal):
                callback.on_step(line["step"], number / 50)
                callback.on_log(line)
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert printed.count("warning    step 250: the training loss 7.10") == shown
    assert [r["step"] for r in run.read_metrics() if "warning" in r] == [250]
    assert "At step 250: the training loss 7.10 is" in summarize(read_run(tmp_path)).verdict


@pytest.mark.parametrize(
    ("norm", "last", "expected"),
    [
        (11.0, [1.0] * 100, True),
        (9.0, [1.0] * 100, False),
        (11.0, [1.0] * 99, False),
        (11.0, [1.0] * 49 + [2.0] * 51, False),
        (math.inf, [1.0] * 3, True),
        (math.nan, [1.0] * 51 + [math.inf] * 49, True),
        (math.inf, [1.0] * 50 + [math.nan] * 50, False),
        (11.0, [1.0] * 51 + [math.nan] * 49, True),
    ],
)
def test_a_spike_is_far_above_the_median_of_a_full_window(norm, last, expected):
    assert is_spike(norm, last, 10.0) is expected
