"""The forecast of a run on this machine: it changes nothing, and its numbers hang together."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from run_settings import quiet, settings

from trivium import cli
from trivium.messages import translate_english
from trivium.models import num_parameters
from trivium.plan import forecast
from trivium.plan.forecast import Forecast
from trivium.presets import presets
from trivium.text import Tokenizer
from trivium.workflows.training import pretrain

TEXT = "\n\n".join(
    f"the cat {n} sat on a mat while seven grey dogs ran over it" for n in range(400)
)


@pytest.mark.parametrize("preset", ["llama-tiny", "t5-tiny", "electra-tiny"])
def test_a_forecast_changes_nothing_of_the_run(preset, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setattr(forecast, "_MIN_TIMED_SECONDS", 0.02)
    runs = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(forecast, "_MIN_RUN_SECONDS", seconds)
        console = quiet()
        run = pretrain(
            preset, data=tmp_path / "text.txt", out=tmp_path / f"{preset}-{seconds}",
            changes=settings(steps=4, eval_every=4, eval_tokens=64), console=console,
        )  # fmt: skip
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("forecast   currently about" in shown) == (seconds == 0.0)
        records = run.read_metrics()
        runs.append([record.get("train_loss", record.get("valid_loss")) for record in records])
        if seconds == 0.0:
            facts = run.read_metadata()["forecast"]
            assert facts["tokens"] == 4 * 32 * 7
    assert runs[0] == runs[1]


def test_a_run_says_how_often_it_reads_its_text(tmp_path, monkeypatch):
    (tmp_path / "long.txt").write_text(TEXT)
    (tmp_path / "short.txt").write_text(TEXT[: len(TEXT) // 4])
    monkeypatch.setattr(forecast, "_MIN_TIMED_SECONDS", 0.02)
    monkeypatch.setattr(forecast, "_MIN_RUN_SECONDS", 0.0)
    for preset, text, epochs, said in (
        ("llama-tiny", "short", 1, None),
        ("llama-tiny", "short", 2, "parameters, more than about 1 do not help (train.epochs)"),
        ("llama-tiny", "long", 2, "over the training text\n"),
        ("bert-tiny", "short", 2, "over the training text\n"),  # whose masks are new in every pass
    ):
        train = {"eval_every": 1000, "save_every": 1000, "eval_tokens": 64, "batch_tokens": 1024}
        changes = settings(steps=None, epochs=epochs, **train)
        out, console = tmp_path / f"{preset}-{text}-{epochs}", quiet()
        pretrain(preset, data=tmp_path / f"{text}.txt", out=out, changes=changes, console=console)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert said in shown if said else "passes" not in shown, shown


@pytest.mark.parametrize(
    ("preset", "kind"), [("bert-tiny", "sentence-pairs"), ("bart-tiny", "denoising")]
)
def test_this_machine_is_measured_without_data(preset, kind, capsys, monkeypatch):
    monkeypatch.setattr(forecast, "_MIN_TIMED_SECONDS", 0.02)
    more = ["--set", f"objective.kind={kind}", "--set", "train.steps=10", "--json"]
    assert cli.main(["plan", preset, "--this-machine", *more]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tokens"] == 10 * 1024
    assert facts["steps"] == 10
    assert facts["seconds"] == facts["tokens"] / facts["tokens_per_second"]
    assert facts["memory_bytes"] < facts["free_bytes"]
    assert facts["warning"] is None


def test_this_machine_is_measured_for_a_number_of_minutes(capsys, monkeypatch):
    monkeypatch.setattr(forecast, "_MIN_TIMED_SECONDS", 0.02)
    assert cli.main(["plan", "gpt2-tiny", "--this-machine", "--set", "train.minutes=2"]) == 0
    assert "take 2m00s" in capsys.readouterr().out


def test_a_tokenizer_without_the_tokens_of_the_objective_is_refused(capsys, tmp_path):
    path = tmp_path / "tokenizer.json"
    Tokenizer.train("wordpiece", texts=[TEXT], special_tokens=["[UNK]"], vocab_size=130).save(path)
    assert cli.main(["plan", "bert-tiny", "--this-machine", "--set", f"tokenizer.path={path}"]) == 1
    assert "needs the special token [MASK]" in capsys.readouterr().err


def test_frozen_weights_take_less_memory(capsys, monkeypatch):
    monkeypatch.setattr(forecast, "_MIN_TIMED_SECONDS", 0.02)
    memory = []
    for change in ("model.freeze=none", "model.freeze=embeddings", "adapter.rank=4"):
        more = ["--set", change, "--set", "train.steps=10", "--json"]
        assert cli.main(["plan", "bert-tiny", "--this-machine", *more]) == 0
        memory.append(json.loads(capsys.readouterr().out)["memory_bytes"])
    assert memory == sorted(memory, reverse=True)
    # Of AdamW's 16 bytes a parameter 12 are for trained ones: the adapter's are few.
    counted = num_parameters(presets["bert-tiny"])
    assert memory[0] - memory[2] == pytest.approx(12 * counted, rel=0.05)


def test_a_run_out_of_gpu_memory_has_no_forecast(tmp_path, monkeypatch):
    def fail(*_):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(forecast, "_MIN_RUN_SECONDS", 0.0)
    monkeypatch.setattr(forecast, "_measure_step_seconds", fail)
    (tmp_path / "text.txt").write_text(TEXT)
    changes = settings(steps=2, eval_tokens=64)
    run = pretrain(
        "gpt2-tiny", data=tmp_path / "text.txt", out=tmp_path / "run",
        changes=changes, console=quiet(),
    )  # fmt: skip
    assert "forecast" not in run.read_metadata()
    assert run.read_metrics()[-1]["step"] == 2


def test_what_does_not_fit_or_takes_days_or_too_few_steps_is_warned_of(capsys):
    fine = Forecast(1000.0, 1e6, 99, 4096, 2**30, 2**31)
    assert fine.warning is None
    assert "16m40s" in fine.line
    assert "are few to learn from" in str(replace(fine, minutes=16.7).warning)
    assert "days" in str(replace(fine, tokens_per_second=1.0).warning)
    assert "micro_batch_tokens" in str(replace(fine, memory_bytes=2**32).warning)
    days = translate_english(str(replace(fine, tokens_per_second=1.0).warning), "zh")
    assert "约需 12 天" in days
    assert cli.main(["plan", "llama-65b", "--this-machine"]) == 1
    assert "GiB are free on cpu" in capsys.readouterr().err
