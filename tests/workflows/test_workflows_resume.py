"""A run that was interrupted, killed or damaged continues as if nothing had happened."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from run_settings import assert_equal_runs, interrupt_and_resume, lasting, quiet, settings

from trivium import load, model_folder
from trivium.data.prepare import prepare
from trivium.errors import CheckpointError, RecipeError, TrainingError, TriviumError
from trivium.report import read_run, summarize
from trivium.text import Tokenizer
from trivium.train import gradient_spikes, loss_scale
from trivium.train import trainer as trainer_module
from trivium.train.checkpoint import checkpoints, verify_checkpoint
from trivium.train.loss_scale import LossScale
from trivium.workflows.finished_run import ValidationMetrics
from trivium.workflows.training import finetune, pretrain


def test_an_interrupted_run_ends_bit_equal(encoder, text, tmp_path, monkeypatch):
    def start(out, resume):
        changes, data = ((), ()) if resume else (settings(), text)
        return pretrain(
            "bert-tiny", data=data, out=out, resume=resume, changes=changes, console=quiet()
        )

    run = interrupt_and_resume(monkeypatch, start, tmp_path / "run", 1, 13)
    assert_equal_runs(run, encoder)
    names = [path.name for path in checkpoints(run.checkpoints)]
    assert names == ["step-00000024", "step-00000020", "step-00000016"]


@pytest.mark.parametrize(
    ("preset", "stops"),
    [("lstm-tiny", range(7)), ("transformer-xl-tiny", [4]), ("xlnet-tiny", [4])],
)
def test_a_run_that_carries_state_ends_bit_equal(preset, stops, text, tmp_path, monkeypatch):
    """Interrupted after every step: within an epoch, and at the end of one."""
    short = tmp_path / "short.txt"
    short.write_text(text.read_text()[:3000])

    def start(out, resume, preset=preset):
        changes = settings(steps=8, eval_every=4, save_every=8)
        changes |= {"objective": {"carry_state": True}}
        return pretrain(
            preset, data=() if resume else short, out=out, resume=resume,
            changes=() if resume else changes, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / preset, False)
    assert 2 < whole.read_metadata()["train_tokens"] / (32 * 7) < 7
    run = interrupt_and_resume(monkeypatch, start, tmp_path / f"{preset}-again", *stops)
    assert_equal_runs(run, whole)


def test_a_step_longer_than_an_epoch_carries_no_state(text, tmp_path):
    """Interrupted after every step: within an epoch, and at the end of one."""
    short = tmp_path / "short.txt"
    short.write_text(text.read_text()[:3000])
    changes = ["train.batch_tokens=100000", "objective.carry_state=true"]
    with pytest.raises(RecipeError, match="no row goes on with another"):
        pretrain("lstm-tiny", data=short, out=tmp_path / "a", changes=changes, console=quiet())


def test_contrastive_learning_resumes_bit_equal(encoder, text, tmp_path, monkeypatch):
    """In parts of a few texts, with dropout, and sentences drawn from texts."""
    data = tmp_path / "texts.txt"
    data.write_text(text.read_text().replace(".\n", ". ")[:4000])
    train = {"steps": 4, "eval_every": 4, "batch_examples": 11, "micro_batch_tokens": 60}

    def start(out, resume):
        changes = () if resume else {"train": train | {"device": "cpu"}}
        return finetune(
            "contrastive", model="" if resume else encoder.path, data=() if resume else data,
            out=out, changes=changes, resume=resume, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 1), whole)
    assert whole.read_metadata()["metric"] == "mrr"
    assert load(whole.path).pooling == "mean"


def test_mixed_sources_resume_bit_equal(text, reviews, tmp_path, monkeypatch):
    classification = {"kind": "classification"}
    mix = [
        {"name": "text", "paths": [str(text)], "weight": 2.0, "objective": {"kind": "denoising"}},
        {"name": "reviews", "paths": [str(reviews)], "weight": 1.0, "objective": classification},
    ]
    changes = settings(steps=9, eval_every=9, eval_examples=3) | {"mix": mix}

    def start(out, resume):
        chosen = () if resume else changes
        return pretrain("bart-tiny", out=out, resume=resume, changes=chosen, console=quiet())

    whole = start(tmp_path / "whole", False)
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 4), whole)
    records = whole.read_metrics()
    assert {"train_text", "train_reviews"} <= {key for record in records for key in record}
    assert "valid_reviews/accuracy" in records[-1]
    evaluation = json.loads((whole.path / "evaluation.json").read_text())
    assert evaluation["main"] == whole.read_metadata()["metric"] == "reviews/accuracy"


def test_fine_tuning_resumes_bit_equal_and_keeps_the_best(encoder, reviews, tmp_path, monkeypatch):
    train = {"epochs": 4, "eval_every": 4, "log_every": 2, "device": "cpu"}

    def start(out, resume):
        changes = () if resume else {"train": train, "optimizer": {"lr": 3e-3}}
        return finetune(
            "classification", model=encoder.path, data=() if resume else reviews, out=out,
            resume=resume, changes=changes, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    run = interrupt_and_resume(monkeypatch, start, tmp_path / "run", 5)
    assert_equal_runs(run, whole)
    evaluation = json.loads((run.path / "evaluation.json").read_text())
    accuracies = [r["valid_accuracy"] for r in run.read_metrics() if "valid_accuracy" in r]
    assert evaluation["values"]["accuracy"] == max(accuracies)
    console, deaf = quiet(), signal.signal(signal.SIGINT, signal.SIG_IGN)  # as & in scripts
    with monkeypatch.context() as patch:
        patch.setattr(ValidationMetrics, "evaluate", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        finetune("", out=run.path, resume=True, console=console)
    signal.signal(signal.SIGINT, deaf)
    assert "the evaluation was stopped" in console.file.getvalue()  # type: ignore[attr-defined]
    assert load(run.path).classify("the good cat").label in ("pos", "neg")
    assert not (run.path / "evaluation.json").exists()
    finetune("", out=run.path, resume=True, changes=["train.eval_examples=2"], console=quiet())
    assert json.loads((run.path / "evaluation.json").read_text())["num_examples"] == 2
    changed = tmp_path / "changed.jsonl"
    changed.write_text(reviews.read_text().replace("good", "fine"))
    run.recipe.write_text(run.recipe.read_text().replace(str(reviews), str(changed)))
    with pytest.raises(RecipeError, match="changed since this run began: labelled files"):
        start(run.path, True)


def test_an_adapter_resumes_bit_equal(encoder, reviews, tmp_path, monkeypatch):
    train = {"steps": 6, "eval_every": 3, "log_every": 1, "device": "cpu"}

    def start(out, resume):
        changes = () if resume else {"train": train, "adapter": {"rank": 2, "dropout": 0.1}}
        return finetune(
            "classification", model=encoder.path, data=reviews, out=out, resume=resume,
            changes=changes, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 3), whole)
    whole.recipe.write_text(whole.recipe.read_text().replace(str(encoder.path), "runs/gone"))
    with pytest.raises(CheckpointError, match=r"runs/gone: .*\n.*whole started from this model"):
        start(whole.path, True)


def test_spikes_of_the_gradient_norm_are_skipped_and_counted(text, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "SPIKE_WINDOW", 5)
    monkeypatch.setattr(gradient_spikes, "SPIKE_WINDOW", 5)
    clip, steps = torch.nn.utils.clip_grad_norm_, []

    def spike(parameters, largest):
        steps.append(len(steps))
        return clip(parameters, largest) * (40.0 if len(steps) in (3, 8) else 1.0)

    original = trainer_module.forward_backward

    def spoiled(trainer, batch, step):
        losses = original(trainer, batch, step)
        return {term: loss * math.inf if step == 7 else loss for term, loss in losses.items()}

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spike)
    monkeypatch.setattr(trainer_module, "forward_backward", spoiled)
    train = {"steps": 10, "log_every": 1, "save_every": 1, "keep_checkpoints": 10}

    def start(out, resume):
        if not resume:
            steps.clear()
        changes = () if resume else settings(**train, skip_spikes=10.0)
        return pretrain(
            "bert-tiny", data=() if resume else text, out=out, resume=resume,
            changes=changes, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    records = [record for record in whole.read_metrics() if "lr" in record]
    skipped = [record["skipped_steps"] for record in records]
    assert skipped == [0] * 7 + [1] * 3  # before, the window was not full
    assert records[7]["train_loss"] == records[6]["train_loss"]
    assert records[7]["grad_norm"] > 10 * records[6]["grad_norm"]
    weights = [
        (whole.checkpoints / f"step-{step:08}" / "model.safetensors").read_bytes()
        for step in (6, 7, 8, 9)
    ]
    assert weights[1] == weights[2]
    assert len(set(weights)) == 3
    verdict = summarize(read_run(whole.path)).verdict
    assert "because of a spike in the gradient norm or an fp16 overflow: 1." in verdict
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 5), whole)


@pytest.mark.filterwarnings("ignore:.*fp16 is slow on a CPU")
def test_runs_in_float16_continue_with_their_loss_scale(text, tmp_path, monkeypatch):
    monkeypatch.setattr(loss_scale, "_GROWTH_INTERVAL", 3)
    monkeypatch.setattr(LossScale.__init__, "__defaults__", (2.0**24, 0))
    changes = settings(steps=12, precision="fp16", log_every=1)

    def start(out, resume):
        return pretrain(
            "" if resume else "gpt2-tiny", data=() if resume else text, out=out, resume=resume,
            changes=() if resume else changes, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    assert whole.read_metadata()["precision"] == "fp16"
    records = [record for record in whole.read_metrics() if "loss_scale" in record]
    skipped = [record["skipped_steps"] for record in records]
    assert 0 < skipped[0] < skipped[-1] < len(skipped) == 12
    assert len({record["loss_scale"] for record in records}) > 2
    assert f"overflow: {skipped[-1]}." in summarize(read_run(whole.path)).verdict
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 2, 7), whole)


def test_a_finished_run_continues_with_a_new_budget(text, tmp_path):
    out = tmp_path / "run"
    pretrain("bert-tiny", data=text, out=out, changes=settings(steps=8), console=quiet())

    def resumed(preset, *changes):
        return pretrain(preset, out=out, resume=True, changes=list(changes), console=quiet())

    again = resumed("bert-tiny", "train.tokens=2240")
    assert again.read_metrics()[-1]["step"] == 10
    assert "tokens = 2240" in again.recipe.read_text()
    assert "steps" not in again.recipe.read_text()
    console = quiet()
    before = {"device": "another", "precision": "bf16", "torch": "1.0"}
    again.write_metadata(again.read_metadata() | before)
    pretrain("", out=out, resume=True, changes=["optimizer.lr=0.5"], console=console)
    for line in (
        "(it was another), precision = fp32 (it was bf16), torch = ",
        "warning    resuming with optimizer.lr = 0.5, which was 0.0",
        "finished   the run is complete: the budget of 2,240 tokens was used up after step 10.",
    ):
        assert line in console.file.getvalue()  # type: ignore[attr-defined]
    changes = (
        "seed=1",
        "objective.probability=0.5",
        "train.batch_tokens=64",
        "optimizer.kind=muon",
    )
    for change in changes:
        key = change.split("=")[0].removeprefix("train.").split(".")[0]
        with pytest.raises(RecipeError, match=f"cannot change .*{key}"):
            resumed("bert-tiny", change)
    with pytest.raises(RecipeError, match="has bert-tiny, not gpt2-tiny"):
        resumed("gpt2-tiny")


def test_a_run_without_budget_left_is_evaluated_at_its_last_step(text, tmp_path, monkeypatch):
    def start(out, resume):
        changes = ["train.steps=4"] if resume else settings(steps=9)
        preset = "" if resume else "gpt2-tiny"
        return pretrain(
            preset, data=None if resume else text, out=out, resume=resume, changes=changes,
            console=quiet(),
        )  # fmt: skip

    run = interrupt_and_resume(monkeypatch, start, tmp_path / "run", 4)
    for _ in range(2):  # once, however often it is resumed
        evaluated = [record["step"] for record in run.read_metrics() if "valid_loss" in record]
        assert evaluated == [5]
        start(run.path, True)


def test_slow_steps_are_saved_by_time(text, reviews, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer_module, "_SAVE_SHARE", 1e9)
    of_text = {"batch_tokens": None, "eval_tokens": None}
    for average, saved in ((1, ["step-00000001", "step-00000002"]), (2, ["step-00000002"])):
        run = finetune(
            "classification", model="bert-tiny", data=reviews, out=tmp_path / str(average),
            changes=settings(steps=2, save_every=500, average=average, **of_text), console=quiet(),
        )  # fmt: skip
        assert sorted(path.name for path in run.checkpoints.glob("step-*")) == saved
    changes = settings(steps=2, average=2)
    with pytest.raises(
        RecipeError, match="average is for labelled examples, but this run has text only"
    ):
        pretrain("bert-tiny", data=text, out=tmp_path / "text", changes=changes, console=quiet())


def test_what_is_named_with_resume_must_agree_with_the_run(text, tmp_path):
    file, out = tmp_path / "mine.toml", tmp_path / "run"
    file.write_text('[model]\npreset = "bert-tiny"\n[objective]\nprobability = 0.2\n')
    started = {"data": text, "changes": settings(steps=1, save_every=1), "console": quiet()}
    pretrain(file, out=out, **started)
    run = pretrain(file, out=out, resume=True, **started)  # the same command again
    assert run.read_metrics()[-1]["step"] == 1
    file.write_text(file.read_text().replace("0.2", "0.3"))
    for start, key in (
        (
            lambda: pretrain(file, out=out, resume=True),
            r"objective\.probability: .* 0\.2, not 0\.3",
        ),
        (lambda: pretrain("", data="b.txt", out=out, resume=True), r"data\.paths: .*'b\.txt'"),
        (lambda: pretrain(tmp_path, out=out, resume=True), "model: .* has bert-tiny, not /"),
        (lambda: finetune("tagging", out=out, resume=True), "objective.*tagging"),
        (lambda: finetune("", model="gpt2-tiny", out=out, resume=True), "model: .* not gpt2-tiny"),
    ):
        with pytest.raises(RecipeError, match=f"cannot change {key}"):
            start()


def test_a_run_resumes_when_its_text_has_changed_or_is_gone(text, tmp_path):
    own, out, console = tmp_path / "own.txt", tmp_path / "run", quiet()
    own.write_text(text.read_text())
    pretrain("bert-tiny", data=own, out=out, changes=settings(steps=1), console=console)
    own.write_text("another text\n")
    pretrain("", out=out, resume=True, changes=["train.steps=2"], console=console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count("with the text as it was when the run began: it has changed") == 1
    own.unlink()
    run = pretrain("", out=out, resume=True, changes=["train.steps=3"], console=console)
    assert run.read_metrics()[-1]["step"] == 3


def swap_two_tokens(file: Path) -> None:
    tree = json.loads(file.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary["cat"], vocabulary["mat"] = vocabulary["mat"], vocabulary["cat"]
    file.write_text(json.dumps(tree))


def test_what_a_run_depends_on_must_not_have_changed(text, reviews, tmp_path):
    shards, changes = tmp_path / "shards", settings(steps=1)
    run = pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet())
    tokenizer = Tokenizer.load(run.tokenizer)
    prepare([text], tokenizer, shards)
    of_shards = {name: table for name, table in changes.items() if name != "tokenizer"}
    on_shards = pretrain(
        "bert-tiny", data=shards, out=tmp_path / "shards-run", changes=of_shards, console=quiet()
    )
    valid = tmp_path / "valid.jsonl"
    valid.write_bytes(reviews.read_bytes().replace(b'"text": "', b'"text": "also '))
    of_examples = settings(steps=1, batch_tokens=None, eval_tokens=None)
    of_examples["data"] = {"validation": [str(valid)]}
    tuned = finetune(
        "classification", model="bert-tiny", data=reviews, out=tmp_path / "tuned",
        changes=of_examples, console=quiet(),
    )  # fmt: skip

    def refused(run, message):
        with pytest.raises(TriviumError, match=message):
            pretrain("", out=run.path, resume=True, changes=["train.steps=2"], console=quiet())

    recipe = run.recipe.read_text()
    run.recipe.write_text(recipe.replace("probability = 0.3", "probability = 0.2"))
    refused(run, r"cannot change objective.probability: .* has 0.3, not 0.2,")
    run.recipe.write_text(recipe)
    shard = run.shards / "train-00000.bin"
    ids = shard.read_bytes()
    shard.write_bytes(ids[::-1])
    refused(run, r"train-00000\.bin has changed since it was prepared\. Restore it")
    shard.write_bytes(ids)
    swap_two_tokens(run.tokenizer)
    refused(run, "tokenizer.json has changed since it encoded .* in .*shards/tokenizer.json")
    message = r"cannot change data.validation: .* has a path, not 0.1"
    with pytest.raises(RecipeError, match=message):
        finetune("", out=tuned.path, resume=True, changes=["data.validation=0.1"], console=quiet())
    valid.write_text(valid.read_text().replace("good", "fine"))
    refused(tuned, "changed since this run began: labelled files")
    valid.write_bytes(reviews.read_bytes().replace(b'"text": "', b'"text": "also '))
    swap_two_tokens(tuned.tokenizer)
    refused(tuned, "changed since this run began: tokenizer. An exact")
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("cat", "dogs"))
    prepare([other], tokenizer, shards, overwrite=True)
    refused(on_shards, "changed since this run began: token shards")


def test_an_edited_recipe_and_lost_checkpoints_are_said(text, tmp_path):
    changes = settings(steps=1)
    run = pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet())
    shutil.rmtree(run.checkpoints)
    recipe = run.recipe.read_text()
    run.recipe.write_text(re.sub("(?m)^lr = .*", "lr = 0.25", recipe))

    def resumed():
        console = quiet()
        pretrain("", out=run.path, resume=True, changes=["train.steps=1"], console=console)
        return console.file.getvalue()  # type: ignore[attr-defined]

    printed = resumed()
    assert f"from the first step: there is no checkpoint in {run.checkpoints}" in printed
    assert "warning    resuming with optimizer.lr = 0.25, which was 0.0" in printed
    assert "resuming with" not in resumed()


def test_a_crash_while_the_final_model_is_written_leaves_the_checkpoint(
    text, tmp_path, monkeypatch
):
    changes = settings(steps=1, save_every=1)
    run = pretrain("bert-tiny", data=text, out=tmp_path, changes=changes, console=quiet())
    with monkeypatch.context() as patch:
        patch.setattr(model_folder, "write_safetensors", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrain("", out=run.path, resume=True, changes=["train.steps=2"], console=quiet())
    with pytest.warns(UserWarning, match="has not finished: this is its checkpoint of step 2"):
        found = load(run.path)
    expected = load(run.checkpoints / "step-00000002").logits([[5, 6, 7]])
    assert torch.equal(found.logits([[5, 6, 7]]), expected)
    pretrain("", out=run.path, resume=True, console=quiet())
    assert torch.equal(load(run.path).logits([[5, 6, 7]]), expected)


def test_damaged_checkpoints_are_passed_over_and_none_left_is_refused(text, tmp_path):
    console = quiet()
    run = pretrain(
        "bert-tiny", data=text, out=tmp_path / "run", changes=settings(steps=12), console=console
    )
    before, weights = lasting(run), run.weights.read_bytes()
    newest, middle, oldest = checkpoints(run.checkpoints)
    (newest / "optimizer.safetensors").write_bytes(b"damaged")
    assert verify_checkpoint(newest) == "optimizer.safetensors does not match its checksum"
    pretrain("bert-tiny", out=run.path, resume=True, console=console)
    assert "using the checkpoint before it" in console.file.getvalue()  # type: ignore
    assert (lasting(run), run.weights.read_bytes()) == (before, weights)
    assert verify_checkpoint(newest) is None
    # A damaged checkpoint does not count when old ones are deleted.
    (middle / "state.json").write_text("{}")
    pretrain("bert-tiny", out=run.path, resume=True, changes=["train.steps=16"], console=quiet())
    names = [path.name for path in checkpoints(run.checkpoints)]
    assert names == ["step-00000016", "step-00000012", "step-00000008", oldest.name]
    for checkpoint in checkpoints(run.checkpoints):
        (checkpoint / "checksums.json").unlink()
    records = run.metrics_file.read_bytes()
    with pytest.raises(CheckpointError, match="all of its checkpoints are damaged"):
        pretrain("bert-tiny", out=run.path, resume=True, console=quiet())
    assert run.metrics_file.read_bytes() == records


def test_a_run_whose_memory_ran_out_resumes_bit_equal(text, tmp_path, monkeypatch):
    """Dropout is drawn for every micro-batch: their halved size has to outlive the process."""
    original = trainer_module.forward_backward

    def full(trainer, batch, step):
        if step == 2 and trainer.loader.micro_batch_tokens == 96:
            raise torch.cuda.OutOfMemoryError("full")
        return original(trainer, batch, step)

    monkeypatch.setattr(trainer_module, "forward_backward", full)
    console = quiet()

    def start(out, resume):
        changes = () if resume else settings(steps=7, eval_every=7)
        return pretrain(
            "bert-tiny", data=text, out=out, resume=resume, changes=changes, console=console
        )

    whole = start(tmp_path / "whole", False)
    assert whole.read_metadata()["micro_batch_tokens"] == 48
    assert "48 tokens, also after --resume; this changes dropout" in console.file.getvalue()  # type: ignore
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 3), whole)


def test_a_loss_that_is_not_finite_stops_the_run(text, tmp_path):
    changes = settings(clip=1e9, save_every=1) | {"optimizer": {"lr": 1e30}}
    with pytest.raises(TrainingError, match=r"not finite at step \d+.*optimizer.lr"):
        pretrain("gpt2-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet())
