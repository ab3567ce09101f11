"""What the training loop stands on: memory, hardware, progress, validation, tracking."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from trivium.errors import RecipeError
from trivium.presets import presets
from trivium.train import hardware
from trivium.train.memory import fitting_micro_batch
from trivium.train.progress import ProgressLine, TrainingTable
from trivium.train.run import RunFolder

CPU = torch.device("cpu")


def fit(monkeypatch: pytest.MonkeyPatch, gib: float, **changes: int) -> int:
    monkeypatch.setattr("trivium.train.memory.free_memory", lambda device: int(gib * 2**30))
    arguments = {"rows": 64, "length": 128, **changes}
    return fitting_micro_batch(
        presets["bert-base"], precision=torch.float32, device=torch.device("meta"), **arguments
    )


def test_micro_batch_follows_memory_in_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit(monkeypatch, 200) == 64
    sizes = [fit(monkeypatch, gib) for gib in (4, 6, 10, 40)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 64
    for size in sizes:
        parts = -(-64 // size)
        assert size - 64 / parts < 1


def test_a_model_that_cannot_fit_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RecipeError, match=r"needs about .* GiB.*smaller preset"):
        fit(monkeypatch, 1)


def test_models_that_are_trained_together_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.train.memory.free_memory", lambda device: 8 * 2**30)
    one, two = (
        fitting_micro_batch(
            *specs, rows=64, length=128, precision=torch.float32, device=torch.device("meta")
        )
        for specs in ([presets["bert-base"]], [presets["bert-base"], presets["bert-small"]])
    )
    assert two < one


def test_unknown_device_and_absent_gpu_are_clear_errors() -> None:
    with pytest.raises(RecipeError, match='"auto", "cpu" or "cuda"'):
        hardware.choose_device("gpu0")
    if not torch.cuda.is_available():
        with pytest.raises(RecipeError, match="no CUDA device"):
            hardware.choose_device("cuda")
    assert hardware.choose_precision("bf16", CPU) is torch.bfloat16
    assert hardware.choose_precision("fp32", CPU) is torch.float32
    expected = torch.bfloat16 if hardware.has_native_bf16(CPU) else torch.float32
    assert hardware.choose_precision("auto", CPU) is expected


def test_measured_peak_is_a_plausible_speed() -> None:
    peak = hardware.peak_flops(CPU, torch.float32)
    assert peak is not None
    assert 1e8 < peak < 1e15


def test_table_says_step_training_loss_and_validation_loss() -> None:
    out = io.StringIO()
    line = ProgressLine(Console(file=out, width=100))
    table = TrainingTable(
        line, unigram_loss=7.0, flops_per_token=1e6, peak_flops=1e10, seconds_left=lambda p: 90.0
    )
    table.logged({"step": 10, "train_loss": 6.5, "tokens_per_second": 5000.0}, 0.25)
    table.evaluated({"step": 10, "valid_loss": 6.25})
    rows = out.getvalue().splitlines()
    assert rows[-2].split(" | ") == ["    Step", "Training loss", "Validation loss"]
    assert rows[-1].split() == ["10", "|", "6.5000", "|", "6.2500"]


def test_live_line_measures_against_peak_and_word_frequency() -> None:
    said: list[str] = []

    class Recorder(ProgressLine):
        def update(self, text: str) -> None:
            said.append(text)

    table = TrainingTable(
        Recorder(Console(file=io.StringIO())),
        unigram_loss=7.0,
        flops_per_token=1e6,
        peak_flops=1e10,
        seconds_left=lambda progress: 90.0,
    )
    table.logged({"step": 10, "train_loss": 6.5, "tokens_per_second": 5000.0}, 0.25)
    assert said == [
        "step 10  loss 6.500  word frequency 7.00  5,000 tokens/s  50% of peak  "
        "25% done, 1m30s left"
    ]


def test_metrics_survive_a_half_written_line_and_rewind(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2, 3):
        run.append_metrics({"step": step, "train_loss": 1.0 / step})
    with run.metrics.open("a") as file:
        file.write('{"step": 4, "train')
    assert [record["step"] for record in run.read_metrics()] == [1, 2, 3]
    run.rewind_metrics(2)
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2]


def test_tensorboard_events_hold_the_metrics(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from trivium.train.tracking import TensorBoard

    board = TensorBoard(tmp_path)
    board.write({"step": 5, "tokens": 50, "seconds": 1.0, "train_loss": 2.5})
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["train_loss"]
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == [(5, 2.5)]
