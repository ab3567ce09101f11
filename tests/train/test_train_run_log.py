"""What a run shows and logs: a table, a live line that never wraps, TensorBoard; checkpoints."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest
import torch
from rich.console import Console

from trivium import progress
from trivium.errors import CheckpointError, TriviumError
from trivium.model_folder import write_checksums
from trivium.presets import presets
from trivium.progress import ProgressLine, format_duration
from trivium.train import hardware
from trivium.train.checkpoint import Checkpoints, restore, save_checkpoint
from trivium.train.distributed import SINGLE_PROCESS
from trivium.train.kept_weights import load_average_weights
from trivium.train.run_folder import RunFolder
from trivium.train.terminal_log import TerminalLog
from trivium.train.trackers import MetricsFile, TensorBoard
from trivium.train.train_config import TrainConfig
from trivium.train.trainer import TrainState

STEP = {"step": 10, "tokens": 99, "seconds": 1.5, "train_loss": 3.25, "tokens_per_second": 1000.0}
FACTS = {"unigram_loss": 6.0, "flops_per_token": 1, "peak_flops": None}
EVALUATED = {"eval_examples": 400, "metric_examples": 400, "valid_examples": 900}


class Log:
    """A terminal's log in which a step and its record are one call."""

    def __init__(self, line, config, metadata, metric=None):
        self.metric = metric
        self.terminal = TerminalLog(line, config, metadata, lambda: self.metric)

    def write(self, record, progress):
        if "train_loss" in record:
            self.terminal.on_step(record["step"], progress)
            self.terminal.on_log(record)
        else:
            self.terminal.on_evaluate(record, None)  # type: ignore[arg-type]


def test_records_go_to_the_table_the_metrics_and_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    output = io.StringIO()
    line = ProgressLine(Console(file=output, width=80))
    run = RunFolder(tmp_path)
    log = Log(line, TrainConfig(eval_every=10), FACTS, "accuracy")
    evaluation = {"step": 10, "valid_loss": 3.5, "valid_accuracy": 0.75, "samples": ["text"]}
    log.write(STEP, 0.25)
    log.write(evaluation, 0.25)
    lm: Any = None
    for callback in (MetricsFile(run), TensorBoard(tmp_path / "tensorboard")):
        callback.on_start(lm, lm)
        callback.on_log(STEP)
        callback.on_evaluate(evaluation, lm)
        callback.on_end(None)
    assert run.read_metrics() == [STEP, evaluation]
    assert [word.strip() for word in output.getvalue().splitlines()[1].split("|")] == [
        "10", "3.2500", "3.5000", "0.7500",
    ]  # fmt: skip
    assert list((tmp_path / "tensorboard").iterdir())
    with run.metrics_file.open("a") as file:
        file.write('{"step": 11, "tr')  # a crash in the middle of a line
    assert len(run.read_metrics()) == 2


def test_a_live_line_stays_one_line(monkeypatch):
    output = io.StringIO()
    console = Console(file=output, width=60, force_terminal=True)
    line = ProgressLine(console)
    log = Log(line, TrainConfig(eval_every=10), FACTS | {"peak_flops": 1})
    with line.running():
        log.write(STEP, 0.2)
        log.write(STEP, 0.25)
        line.print_line("stays")
    shown = output.getvalue()
    assert "stays" in shown
    assert "step 10  25% done, 0s left" in shown  # what matters most is first
    assert "\u2026" in shown  # the end is cut, not wrapped
    monkeypatch.setattr(progress, "_STANDING", -1.0)
    output.truncate(0)
    with line.running():
        line.update("saving")
        line.print_line()
    assert "saving  (0s)" in output.getvalue()
    assert format_duration(42) == "42s"
    assert format_duration(8000) == "2h13m"


def test_progress_in_a_log_file_takes_rows_of_the_table(monkeypatch):
    monkeypatch.setattr(progress, "_LOG_EVERY", -1.0)
    output = io.StringIO()
    line = ProgressLine(Console(file=output, width=80))
    with line.running():
        log = Log(line, TrainConfig(eval_every=20), {**FACTS, **EVALUATED}, metric="")
        log.write(STEP, 0.25)
        line.update("evaluating")
        log.metric = "accuracy"
        log.write({"step": 10, "valid_loss": 3.5, "valid_accuracy": 0.75}, 0.25)
        log.write(STEP, 0.5)
        log.write(STEP | {"step": 20}, 0.6)  # an evaluation follows
        log.write(STEP, 1.0)  # here, too
    assert output.getvalue().splitlines() == [
        "step 10  25% done  loss 3.250  unigram 6.00  1,000 tokens/s",
        "    Step | Training loss | Validation loss | accuracy on 400",
        "      10 |        3.2500 |          3.5000 |          0.7500",
        "      10 |        3.2500 |               - |               -   50% done, 0s left",
    ]


def test_every_log_line_is_shown_where_their_distance_is_set():
    output = io.StringIO()
    log = Log(
        ProgressLine(Console(file=output, width=80)),
        TrainConfig(eval_every=200, log_every=100),
        FACTS,
    )
    for step in (100, 200, 300):
        log.write(STEP | {"step": step}, step / 1000)
        if step % 200 == 0:
            log.write({"step": step, "valid_loss": 3.5}, 0.2)
    rows = [row.split("|") for row in output.getvalue().splitlines()]
    assert [row[0].strip() for row in rows] == ["Step", "100", "200", "300"]


def test_a_disk_that_is_full_leaves_earlier_checkpoints(tmp_path, monkeypatch):
    model, state = torch.nn.Linear(3, 2), TrainState(step=4)
    save_checkpoint(tmp_path, model, [], state, keep=2)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trivium.interop.tensor_files.save_file", full)
    state.step = 8
    with pytest.raises(CheckpointError, match="the disk is full"):
        save_checkpoint(tmp_path, model, [], state, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


def test_the_files_of_a_checkpoint_follow_the_umask(tmp_path):
    previous = os.umask(0o027)
    try:
        model = torch.nn.Linear(3, 2)
        checkpoint = save_checkpoint(tmp_path, model, [], TrainState(step=4), keep=2)
    finally:
        os.umask(previous)
    assert {oct(path.stat().st_mode)[-3:] for path in checkpoint.iterdir()} == {"640"}


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    model = torch.nn.Linear(3, 2)
    checkpoint = save_checkpoint(tmp_path, model, [], TrainState(step=4), keep=2)
    assert restore(checkpoint, model, []) == TrainState(step=4)
    state = checkpoint / "state.json"
    (tmp_path / "secret").write_text("outside")
    state.write_text('{"trivium": "0.3", "format": 3, "step": 4, "meter": {"loss": [8.0, 2]}}')
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        restore(checkpoint, model, [])
    names = [path.name for path in checkpoint.glob("[!c]*")]
    for outside in ("../secret", "/etc/hostname"):
        write_checksums(checkpoint, [*names, outside])
        with pytest.raises(CheckpointError, match=f"names '{outside}', which is no file of"):
            restore(checkpoint, model, [])
    write_checksums(checkpoint, names)
    with pytest.raises(CheckpointError, match="checkpoint format 3, but this version reads"):
        restore(checkpoint, model, [])


def test_one_call_restores_the_newest_good_checkpoint_of_a_folder(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer, weights = torch.optim.AdamW(model.parameters()), []
    for step in range(3):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        weights.append(model.weight.detach().clone())
        checkpoint = save_checkpoint(tmp_path, model, [optimizer], TrainState(step=step))
    (checkpoint / "model.safetensors").write_bytes(b"damaged")
    again = torch.nn.Linear(3, 2)
    fresh = torch.optim.AdamW(again.parameters())
    with pytest.warns(UserWarning, match="using the checkpoint before"):
        assert restore(tmp_path, again, [fresh]) == TrainState(step=1)
    assert torch.equal(again.weight, weights[1])
    assert fresh.state[again.weight]["step"] == 2
    with pytest.raises(CheckpointError, match="belongs to another model"):
        restore(tmp_path / "step-00000001", torch.nn.Linear(5, 2), [])
    (tmp_path / "step-00000001" / "checksums.json").write_text("{}")
    assert restore(tmp_path / "step-00000001", again, [fresh], verify=False).step == 1


def test_the_mean_is_that_of_the_good_checkpoints_there_are(tmp_path):
    weights = []
    for step in range(4):
        model = torch.nn.Linear(3, 2)
        weights.append(model.state_dict())
        checkpoint = save_checkpoint(tmp_path, model, [], TrainState(step=step), keep=9)
    (checkpoint / "model.safetensors").write_bytes(b"damaged")
    for wanted, averaged in ((1, weights[2:3]), (2, weights[1:3]), (7, weights[:3])):
        mean = torch.nn.Linear(3, 2)
        load_average_weights(Checkpoints(tmp_path, SINGLE_PROCESS), mean, wanted)
        for name, weight in mean.state_dict().items():
            expected = torch.stack([one[name] for one in averaged]).mean(0)
            torch.testing.assert_close(weight, expected)


def test_devices_and_precisions_that_do_not_exist_are_refused():
    with pytest.raises(TriviumError, match='device "mps" cannot be used: '):
        hardware.choose_device("mps")
    with pytest.raises(TriviumError, match="Give auto, cpu, cuda"):
        hardware.choose_device("gpuu")
    if not torch.cuda.is_available():
        with pytest.raises(TriviumError, match=r"CUDA|NVIDIA"):
            hardware.choose_device("cuda")


@pytest.mark.parametrize("name", ["lstm-mini", "ngram-mini", "t5-mini"])
def test_activations_of_a_preset_have_a_size(name):
    assert presets[name].activation_bytes(128, 4, on_cpu=True) > 1000
