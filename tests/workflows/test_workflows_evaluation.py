"""Evaluations of a run: which metric keeps the weights, what they cost, and who hears of them."""

from __future__ import annotations

import itertools
import json
import time

import pytest
import torch
from run_settings import quiet, settings
from safetensors.torch import load_file

import trivium
from trivium import load
from trivium.errors import DataError, RecipeError
from trivium.objectives.classification import TextClassification
from trivium.objectives.task_metrics import Metrics
from trivium.workflows import finished_run
from trivium.workflows.evaluate import evaluate
from trivium.workflows.training import finetune, pretrain


def test_a_callback_sees_what_is_logged_evaluated_and_saved(text, tmp_path):
    class Notes(trivium.Callback):
        def __init__(self):
            self.seen = []

        def on_log(self, record):
            self.seen.append(("log", record["step"], record["train_loss"]))

        def on_evaluate(self, record, lm):
            with torch.no_grad():
                self.seen.append(("evaluate", record["step"], lm.generate("the", max_new_tokens=1)))

        def on_save(self, folder):
            self.seen.append(("save", int(folder.name[-1]), load(folder).spec))

    notes, changes = Notes(), settings(steps=4, log_every=2, eval_every=4, save_every=3)
    out, start = tmp_path / "run", {"data": text, "changes": changes, "console": quiet()}
    run = pretrain("gpt2-tiny", out=out, callbacks=[notes], resume="auto", **start)
    assert [one[:2] for one in notes.seen] == [
        ("log", 2), ("save", 3), ("log", 4), ("evaluate", 4), ("save", 4),
    ]  # fmt: skip
    assert notes.seen[0][2] == run.read_metrics()[0]["train_loss"]
    # The same command resumes what has begun.
    console = quiet()
    pretrain("gpt2-tiny", out=out, resume="auto", **start | {"console": console})
    assert "was used up after step 4" in console.file.getvalue()  # type: ignore


def test_a_chosen_metric_keeps_the_best_weights(encoder, reviews, tmp_path):
    def start(metric):
        changes = {
            "train": {
                "steps": 4,
                "eval_every": 1,
                "device": "cpu",
                "metric": metric,
                "eval_examples": 8,
            }
        }
        return finetune(
            "classification", model=encoder.path, data=reviews, out=tmp_path / metric,
            changes=changes, console=quiet(),
        )  # fmt: skip

    with pytest.raises(
        RecipeError, match=r'"macro_f" is not a metric.*accuracy, macro_f1.*you mean'
    ):
        start("macro_f")
    assert not (tmp_path / "macro_f").exists()
    run = start("macro_f1")
    assert run.read_metadata()["metric"] == "macro_f1"
    evaluation = json.loads((run.path / "evaluation.json").read_text())
    assert evaluation["main"] == "macro_f1"
    best = max(one["valid_macro_f1"] for one in run.read_metrics() if "valid_macro_f1" in one)
    assert evaluation["values"]["macro_f1"] == best
    with pytest.raises(
        RecipeError, match=r"cannot change train\.metric: .* macro_f1, not accuracy"
    ):
        finetune("", out=run.path, resume=True, changes=["train.metric=accuracy"])
    finetune("", out=run.path, resume=True, changes=["train.eval_examples=5"], console=quiet())
    assert run.read_metadata()["eval_limit"] == 5
    low = Metrics({"mse": 2.0, "pearson": 0.5})
    assert (low.score, low.with_main_metric("pearson").score) == (-2.0, 0.5)


def test_the_mean_of_checkpoints_is_written_where_it_is_best(reviews, tmp_path, monkeypatch):
    scores = itertools.count()

    def measure(*_):
        return {"": Metrics({"accuracy": float(next(scores))})}

    monkeypatch.setattr(finished_run.ValidationMetrics, "evaluate", measure)
    changes = settings(steps=2, eval_every=1, save_every=1, average=2)
    changes["train"] |= {"batch_tokens": None, "eval_tokens": None}
    run = finetune(
        "classification", model="bert-tiny", data=reviews, out=tmp_path / "run", changes=changes,
        console=quiet(),
    )  # fmt: skip
    written = load_file(run.path / "model.safetensors")
    both = [load_file(one / "model.safetensors") for one in run.checkpoints.glob("step-*")]
    assert len(both) == 2
    for name, tensor in written.items():
        torch.testing.assert_close(tensor, torch.stack([one[name] for one in both]).mean(0))


def test_held_out_losses_do_not_depend_on_the_seed(encoder, text, tmp_path):
    """The same weights and rows have the same noise, so that runs compare."""
    losses = []
    for seed in (1, 2):
        changes = settings(steps=1, eval_every=1) | {"seed": seed, "optimizer": {"lr": 1e-12}}
        changes = {n: v for n, v in changes.items() if n not in ("tokenizer", "model")}
        run = pretrain(
            encoder.path, data=text, out=tmp_path / str(seed), changes=changes, console=quiet()
        )
        losses += [one["valid_loss"] for one in run.read_metrics() if "valid_loss" in one]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-6)


def test_a_term_of_the_loss_named_like_a_metric_is_refused(reviews, tmp_path, monkeypatch):
    metrics = TextClassification.compute_metrics
    monkeypatch.setattr(
        TextClassification, "compute_metrics",
        lambda *arguments: Metrics({**metrics(*arguments).values, "lm": 1.0}),
    )  # fmt: skip
    changes = {"train": {"steps": 1, "device": "cpu"}}
    with pytest.raises(RecipeError, match="valid_lm is the name of two values"):
        finetune(
            "classification", model="gpt2-tiny", data=reviews, out=tmp_path / "run",
            changes=changes, console=quiet(),
        )  # fmt: skip
    assert "lm_weight = 0.5" in (tmp_path / "run" / "recipe.toml").read_text()


def test_evaluations_fit_into_a_budget_in_minutes(encoder, reviews, tmp_path, monkeypatch):
    measured = []

    def slow(self, lm, examples):
        measured.append(len(examples))
        time.sleep(0.02 * len(examples))
        return [{}] * len(examples)

    def half_right(self, answers, examples, lm):
        return Metrics({"accuracy": 0.5}).with_examples(answers)

    monkeypatch.setattr(TextClassification, "predict", slow)
    monkeypatch.setattr(TextClassification, "compute_metrics", half_right)
    monkeypatch.setattr(finished_run, "_MIN_EXAMPLES", 2)
    console = quiet()
    finetune(
        "classification", model=encoder.path, data=reviews, validation=0.5, out=tmp_path / "run",
        changes={"train": {"minutes": 0.02, "eval_every": 50, "device": "cpu"}}, console=console,
    )  # fmt: skip
    loading, probe, *during, end = measured
    assert (loading, probe) == (1, 2)
    assert all(2 <= one <= 6 for one in during)  # at most a tenth of 1.2 s each
    assert 2 <= end <= 15  # of 48
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        f"metrics    on {during[0]} of the validation examples during training (about 0s" in printed
    )


@pytest.mark.parametrize(
    ("line", "limit", "message"),
    [('{"text": "a", "labl": "b"}', None, "no column for the label"), ("", 0, "no examples")],
)
def test_an_evaluation_without_examples_is_refused(line, limit, message, reviews, tmp_path):
    changes = {"train": {"steps": 1, "device": "cpu", "precision": "fp32"}}
    common = {"out": tmp_path / "run", "changes": changes, "console": quiet()}
    run = finetune("classification", model="bert-tiny", data=reviews, **common)
    (tmp_path / "bad.jsonl").write_text(line or '{"text": "a", "label": "good"}')
    skip = ["data.bad_records=skip"]
    with pytest.raises(DataError, match=message):
        evaluate(run.path, tmp_path / "bad.jsonl", changes=skip, limit=limit)
