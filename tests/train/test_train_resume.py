"""A run that was stopped, killed or damaged goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trivium.errors import CheckpointError, DataError, RecipeError, TrainingError
from trivium.train.checkpoint import checkpoints, damage
from trivium.train.loop import Interrupted
from trivium.train.run import RunFolder
from trivium.workflows.pretrain import pretrain

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "dogs", "ran", "over"]
COMMON = {
    "tokenizer": {"vocab_size": 300},
    "data": {"length": 32},
    "train": {
        "steps": 60,
        "batch_tokens": 32 * 7,
        "micro_batch": 3,
        "log_every": 3,
        "eval_every": 10,
        "save_every": 4,
        "eval_tokens": 320,
    },
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(5)
    documents = [
        "\n".join(
            " ".join(chance.choices(WORDS, k=chance.randint(5, 20))) + "."
            for _ in range(chance.randint(2, 9))
        )
        for _ in range(300)
    ]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(documents))
    return path


def lasting(run: RunFolder) -> list[dict[str, float]]:
    """The metrics without what a clock decides."""
    return [
        {key: value for key, value in record.items() if key not in ("seconds", "tokens_per_second")}
        for record in run.read_metrics()
    ]


def assert_equal_runs(run: RunFolder, whole: RunFolder) -> None:
    assert lasting(run) == lasting(whole)
    assert run.weights.read_bytes() == whole.weights.read_bytes()


def settings(**train: object) -> dict[str, object]:
    return {**COMMON, "model": {"dropout": 0.1}, "train": {**COMMON["train"], **train}}


@pytest.fixture(scope="module", params=["modernbert-tiny", "gpt2-tiny"])
def whole(request: pytest.FixtureRequest, text: Path, tmp_path_factory) -> tuple[str, RunFolder]:
    out = tmp_path_factory.mktemp("whole") / "run"
    return request.param, pretrain(request.param, data=text, out=out, changes=settings())


def test_the_run_folder_is_complete(whole: tuple[str, RunFolder]) -> None:
    run = whole[1]
    assert run.weights.is_file()
    assert run.report.is_file()
    assert [path.name for path in checkpoints(run.checkpoints)] == [
        "step-00000060",
        "step-00000056",
        "step-00000052",
    ]
    steps = [record["step"] for record in run.read_metrics() if "valid_loss" in record]
    assert steps == [10, 20, 30, 40, 50, 60]
    assert not list(run.path.rglob("*.partial"))


@pytest.mark.slow
def test_killed_at_random_moments_is_bit_equal(
    whole: tuple[str, RunFolder], text: Path, tmp_path: Path
) -> None:
    preset, expected = whole
    run = RunFolder(tmp_path / "run")
    flags = [
        f"--set={section}.{key}={json.dumps(value)}"
        for section, values in settings().items()
        for key, value in values.items()
    ]
    fresh = [preset, "--data", str(text), *flags]
    chance = random.Random(preset)
    kills = 0
    for _ in range(60):
        arguments = ["--resume"] if run.recipe.is_file() else fresh
        process = subprocess.Popen(
            [sys.executable, "-m", "trivium", "pretrain", *arguments, "--out", str(run.path)],
            stderr=subprocess.DEVNULL,
            # The whole run above used as many: sums on other numbers of threads round otherwise.
            env={**os.environ, "OMP_NUM_THREADS": str(_threads())},
        )
        if kills < 10:
            if kills:
                _wait_for_growth(process, run.metrics)
                time.sleep(chance.uniform(0.0, 0.04))
            else:
                time.sleep(chance.uniform(0.0, 3.0))
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        elif process.wait() == 0:
            break
    assert kills == 10
    assert_equal_runs(run, expected)


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _wait_for_growth(process: subprocess.Popen, file: Path) -> None:
    """Until a resumed process, which first drops what is past its checkpoint, writes a line."""
    size = None
    while process.poll() is None:
        now = file.stat().st_size if file.exists() else 0
        if size is not None and now > size:
            return
        size = now
        time.sleep(0.002)


def stop_after(run: RunFolder, preset: str, text: Path, step: int, monkeypatch) -> None:
    """Train until a step, then be interrupted as by Ctrl-C."""
    append = RunFolder.append_metrics

    def interrupting(self: RunFolder, record: dict[str, float]) -> None:
        append(self, record)
        if record["step"] >= step:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", interrupting)
        with pytest.raises(Interrupted):
            pretrain(preset, data=text, out=run.path, changes=settings())


def test_interrupted_run_saves_and_resumes_bit_equal(
    whole: tuple[str, RunFolder], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset, expected = whole
    run = RunFolder(tmp_path / "run")
    stop_after(run, preset, text, 15, monkeypatch)
    assert next(checkpoints(run.checkpoints)).name == "step-00000015"
    pretrain("", out=run.path, resume=True)
    assert_equal_runs(run, expected)


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_damaged_checkpoint_is_detected_and_the_one_before_used(
    whole: tuple[str, RunFolder],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    harm: str,
) -> None:
    preset, expected = whole
    run = RunFolder(tmp_path / "run")
    stop_after(run, preset, text, 15, monkeypatch)
    newest = next(checkpoints(run.checkpoints))
    victim = newest / "optimizer.safetensors"
    content = bytearray(victim.read_bytes())
    if harm == "truncate":
        victim.write_bytes(content[:-100])
    elif harm == "flip":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    else:
        victim.unlink()
    assert damage(newest) is not None
    pretrain("", out=run.path, resume=True)
    said = capsys.readouterr().err
    assert "step-00000015" in said
    assert "optimizer.safetensors" in said
    assert "resuming   at step 12" in said
    assert_equal_runs(run, expected)


def test_full_disk_keeps_the_last_checkpoint(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trivium.train import checkpoint

    run, saved = RunFolder(tmp_path / "run"), checkpoint.save_file

    def full_at_the_second(tensors, path) -> None:
        if "step-00000008" in str(path) and "optimizer" in str(path):
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        saved(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full_at_the_second)
        with pytest.raises(CheckpointError, match="disk is full"):
            pretrain("modernbert-tiny", data=text, out=run.path, changes=settings())
    left = [path.name for path in run.checkpoints.iterdir()]
    assert left == ["step-00000004"]
    pretrain("", out=run.path, resume=True)
    assert run.weights.is_file()


def test_more_steps_can_be_asked_for_later(text: Path, tmp_path: Path) -> None:
    run = pretrain("modernbert-tiny", data=text, out=tmp_path / "run", changes=settings(steps=4))
    pretrain("", out=run.path, changes=["train.steps=8"], resume=True)
    assert run.read_metrics()[-1]["step"] == 8


def test_what_is_trained_so_far_depends_on_cannot_change(text: Path, tmp_path: Path) -> None:
    run = pretrain("modernbert-tiny", data=text, out=tmp_path / "run", changes=settings(steps=4))
    for change in (
        "seed=1",
        "data.length=16",
        "objective.probability=0.5",
        "train.batch_tokens=64",
    ):
        with pytest.raises(RecipeError, match="cannot change"):
            pretrain("", out=run.path, changes=[change], resume=True)


def test_a_run_is_not_written_over(text: Path, tmp_path: Path) -> None:
    run = pretrain("modernbert-tiny", data=text, out=tmp_path / "run", changes=settings(steps=4))
    weights = run.weights.read_bytes()
    with pytest.raises(RecipeError, match=r"--resume.*--overwrite"):
        pretrain("modernbert-tiny", data=text, out=run.path, changes=settings(steps=4))
    assert run.weights.read_bytes() == weights
    with pytest.raises(DataError):
        pretrain("modernbert-tiny", data=tmp_path / "no.txt", out=run.path, overwrite=True)
    assert run.weights.read_bytes() == weights
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(RecipeError, match="other things"):
        pretrain("modernbert-tiny", data=text, out=tmp_path / "other", changes=settings(steps=4))


def test_loss_that_is_not_finite_stops_at_the_last_good_checkpoint(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trivium.nn.loss import Loss
    from trivium.objectives import Masked

    run, honest, calls = RunFolder(tmp_path / "run"), Masked.loss, 0

    def explodes(self: Masked, model, batch) -> Loss:
        nonlocal calls
        loss = honest(self, model, batch)
        calls += model.training
        return Loss(loss.sum * float("nan"), loss.count) if calls > 20 else loss

    with monkeypatch.context() as patch:
        patch.setattr(Masked, "loss", explodes)
        with pytest.raises(TrainingError, match=r"not finite|no longer finite"):
            pretrain("modernbert-tiny", data=text, out=run.path, changes=settings())
    newest = next(checkpoints(run.checkpoints))
    assert damage(newest) is None
    assert newest.name == "step-00000004"
    pretrain("", out=run.path, changes=["optimizer.lr=1e-4"], resume=True)
    assert run.read_metrics()[-1]["step"] == 60


def test_micro_batch_changes_nothing_that_matters(text: Path, tmp_path: Path) -> None:
    losses = []
    for rows in (7, 2):
        changes = settings(steps=6, micro_batch=rows, precision="fp32", log_every=1)
        changes["model"] = {"dropout": 0.0}
        run = pretrain("gpt2-tiny", data=text, out=tmp_path / str(rows), changes=changes)
        losses.append([r["train_loss"] for r in run.read_metrics() if "train_loss" in r])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
