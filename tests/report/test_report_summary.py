"""Verdicts, tables for the terminal, and rankings."""

from __future__ import annotations

import dataclasses
import json

import pytest
from report_runs import FACTS, RECIPE, losses

from trivium.report import format_report, read_run, summarize
from trivium.report.ranking import describe_differences, format_ranking, rank_runs

CAUSAL = '[model]\npreset = "{}"\n[objective]\nkind = "{}"\n'


def test_verdicts_of_pretraining(make_run):
    cases = [
        (
            losses(6.5, 4.5),
            FACTS,
            "4.5000 nats, 2.5000 below the unigram baseline (7.0000).",
            False,
        ),
        (losses(6.9), FACTS, "is hardly better than the unigram baseline", True),
        (losses(7.1), FACTS, "is no better than the unigram baseline", True),
        (losses(9.0), FACTS, "has not reached the unigram baseline", True),
        (
            losses(4.0, 5.0),
            FACTS,
            "is worse than the best one, at step 20, and the training loss has risen, too: try",
            False,
        ),
        (losses(4.0), {}, "Validation loss 4.0000 nats.", False),
        (losses(4.0)[:1], {**FACTS, "unigram_loss": None}, "(not evaluated yet).", False),
        (losses(4.0)[:1], {"valid_examples": 7}, "(not evaluated yet).", False),
        (losses(4.0), {"finished": False}, "nats. The run has not finished: step 20.", False),
        (losses(4.0), {"finished": True}, "Validation loss 4.0000 nats.", False),
        (
            [*losses(4.0), {"step": 40, "valid_loss": 5.0}],
            FACTS,
            "(5.0000) is worse than the best one, at step 20: the model overfits",
            False,
        ),
        ([{"step": 1, "lr": 1}], FACTS, "No loss has been logged yet.", False),
    ]
    for number, (metrics, metadata, words, stuck) in enumerate(cases):
        summary = summarize(read_run(make_run(str(number), metrics=metrics, metadata=metadata)))
        assert words in summary.verdict
        assert summary.stuck == stuck
    advice = summarize(read_run(make_run("stuck", metrics=losses(7.0)))).verdict
    for words in ("optimizer.lr", "batch_tokens", "dropout = 0", "pre-norm model"):
        assert words in advice
    better = RECIPE.replace("5e-05", "0.002").replace("40960", "4096").replace("0.1", "0.0")
    advice = summarize(read_run(make_run("less", metrics=losses(7.0), recipe=better))).verdict
    assert "optimizer.lr" not in advice


def test_verdicts_of_tasks(make_run):
    def metrics(*scores):
        return [
            {"step": n, "valid_accuracy": s, "valid_loss": 1.0} for n, s in enumerate(scores, 1)
        ]

    metadata = {"task": "classification", "valid_examples": 7, "metric": "accuracy"}
    run = read_run(make_run("running", metrics=metrics(0.5, 0.7), metadata=metadata))
    assert summarize(run).verdict == "accuracy 0.7000 so far, at step 2."
    evaluation = {
        "main": "accuracy",
        "values": {"accuracy": 0.6},
        "labels": ["good", "bad"],
        "confusion": [[3, 0], [2, 0]],
    }
    run = read_run(make_run("a", metrics=metrics(0.6), metadata=metadata, evaluation=evaluation))
    summary = summarize(run)
    assert "on 7 validation examples: no better than always predicting" in summary.verdict
    assert summary.stuck
    evaluation = {"main": "bleu", "values": {"bleu": 0.001}}
    summary = summarize(
        read_run(make_run("none", metrics=metrics(0.6), metadata={}, evaluation=evaluation))
    )
    assert summary.stuck
    assert (
        "0.0010 (0.1 BLEU): the model learned almost nothing. Try more examples" in summary.verdict
    )
    evaluation = {"main": "mse", "values": {"mse": 0.5}, "higher_is_better": False}
    records = [{"step": n, "valid_loss": v, "valid_mse": v} for n, v in ((1, 0.5), (2, 0.9))]
    summary = summarize(
        read_run(make_run("b", metrics=records, metadata={}, evaluation=evaluation))
    )
    assert summary.best is not None
    assert summary.best.step == 1
    assert summary.verdict == "mse 0.5000, with the weights of step 1, the best of 2 evaluations."


def test_the_table_for_the_terminal(make_run):
    text = format_report([make_run(metrics=losses(*(7.0 - n / 20 for n in range(41))))])
    lines = text.splitlines()
    assert lines[0] == "mine"
    assert lines[2] == "     Step | Training loss | Validation loss"
    assert lines[4] == "       20 |        7.1250 |          7.0000"
    assert lines[23] == "      820 |        5.1250 |          5.0000"
    assert "(20 of 41 evaluations)" in lines
    assert "best              5.0000 nats per token at step 820" in lines
    assert "unigram baseline  7.0000 nats per token" in lines
    records = [{"step": 1, "valid_f1": 0.5, "valid_loss": 1.0}]
    text = format_report(
        [make_run("task", metrics=records, metadata={"task": "tagging", "metric": "f1"})]
    )
    assert "best              f1 0.5000 at step 1" in text
    text = format_report([make_run("begun", metrics=[{"step": 1, "train_loss": 3.0}])])
    assert "training loss     3.0000 nats per token, no evaluation" in text


@pytest.fixture
def make(make_run):
    def maker(name, *valid, kind="causal", **metadata):
        metadata = {**FACTS, **metadata}
        recipe = CAUSAL.format(f"{name}-tiny", kind)
        return read_run(make_run(name, metrics=losses(*valid), recipe=recipe, metadata=metadata))

    return maker


def budgeted(run, **train):
    """A run with a budget in its recipe."""
    return dataclasses.replace(run, recipe={**run.recipe, "train": train})


@pytest.mark.parametrize("budgets", [({"steps": 40}, {"steps": 40}), ({"tokens": 4000},) * 2])
def test_equal_budgets_in_steps_or_tokens_are_compared_without_the_clock(make, budgets):
    """Bit-equal runs, one of them killed, resumed, and so ten times as long."""
    runs = [budgeted(make(name, 6.0, 5.0), **one) for name, one in zip("ab", budgets)]
    slow = [{**one, "seconds": one["seconds"] ** 2 * 10} for one in runs[1].metrics]
    runs[1] = dataclasses.replace(runs[1], metrics=tuple(slow))
    (ranking,) = rank_runs(runs, ["undisturbed", "resumed"])
    assert [line.loss for line in ranking.lines if line.place] == [5.0, 5.0]
    assert ranking.note == ""
    after = "step 40" if "steps" in budgets[0] else "4,000 tokens"
    assert ranking.title == f"next-token prediction after {after}"


@pytest.mark.parametrize(
    ("budgets", "after"),
    [
        (({"steps": 80}, {"steps": 40}), "step 40"),
        (({"steps": 80}, {"minutes": 1}), "4,000 tokens"),
        (({"minutes": 2}, {"minutes": 1}), "4s"),
        (({"epochs": 2}, {"tokens": 4000}), "4,000 tokens"),
    ],
)
def test_unequal_budgets_say_what_is_compared(make, budgets, after):
    runs = [make("long", 6.6, 6.1, 5.9, 3.0), make("short", 6.5, 5.25)]
    runs = [budgeted(run, **one) for run, one in zip(runs, budgets)]
    (ranking,) = rank_runs(runs, ["long", "short"])
    named = ", ".join(f"{size} {kind}" for one in budgets for kind, size in one.items())
    assert ranking.note == (
        f"The budgets differ ({named}): the comparison uses the best losses up to {after}."
    )
    assert ranking.note in format_ranking(ranking)
    assert [line.name for line in ranking.lines if line.place] == ["short", "long"]


def test_runs_are_ranked_by_what_they_reached_when_the_shortest_ended(make):
    # Two seconds an evaluation: the long run's best comes too late.
    runs = [make("long", 6.6, 6.1, 5.9, 3.0), make("short", 6.5, 5.25, 5.4)]
    runs = [budgeted(run, minutes=1) for run in runs]
    (ranking,) = rank_runs(runs, ["long", "short"])
    assert ranking.same_text
    assert (ranking.axis, ranking.limit) == ("seconds", 6.0)
    lines = [(line.place, line.name, line.loss, line.at) for line in ranking.lines]
    assert lines == [
        (1, "short", 5.25, 4.0),
        (2, "long", 5.9, 6.0),
        (None, "unigram baseline", 7.0, None),
    ]
    text = format_ranking(ranking)
    assert text.startswith("next-token prediction after 6s")
    assert " 1. short" in text


def test_objectives_are_ranked_apart(make):
    runs = [
        make("a", 5.0),
        make("b", 4.0, kind="masked"),
        make("c", 6.0, kind="bidirectional-lm"),
        make("d", 3.0, kind="masked"),
    ]
    rankings = rank_runs(runs, list("abcd"))
    assert {one.objective: [line.name for line in one.lines] for one in rankings} == {
        "next-token prediction": ["a", "c", "unigram baseline"],
        "masked": ["d", "b", "unigram baseline"],
    }
    assert rank_runs(runs[:2], ["a", "b"]) == []
    (sentence,) = describe_differences(runs)
    assert "different objectives (next-token prediction, masked)" in sentence
    assert format_report([run.folder for run in runs]).endswith(sentence)
    assert describe_differences([runs[0], runs[2]]) == []
    other = [make("e", 5.0), make("f", 6.0, unigram_loss=8.0, bytes_per_token=8.5)]
    (ranking,) = rank_runs(other, ["e", "f"])
    assert not ranking.same_text
    assert [line.name for line in ranking.lines] == ["f", "e"]


def test_the_time_is_that_of_training_not_of_evaluating(make):
    def delayed(run, factor, key):
        records = [
            {**one, "seconds": one["seconds"] * factor} if key in one else one
            for one in run.metrics
        ]
        return dataclasses.replace(run, metrics=tuple(records))

    run = budgeted(delayed(make("mine", 6.0), 4.5, "valid_loss"), minutes=1)
    (ranking,) = rank_runs([run, run], ["a", "b"])
    assert ranking.limit == 2.0
    # A run whose first evaluation comes later is ranked by it.
    runs = [make("quick", 6.0), delayed(make("slow", 5.0), 10, "seconds")]
    runs = [budgeted(run, minutes=1) for run in runs]
    (ranking,) = rank_runs(runs, ["quick", "slow"])
    assert [(line.name, line.at) for line in ranking.lines if line.place] == [
        ("slow", 20.0),
        ("quick", 2.0),
    ]


EXAMPLES = {
    "classification": (
        [{"text": f"t{n}", "label": "ab"[n % 2]} for n in range(10)], ("a", "b"), "accuracy",
    ),
    "multi-label": (
        [{"text": f"t{n}", "label": [["a"], ["b", "a"]][n % 2]} for n in range(10)],
        (["a"], ["b"]), "exact_match",
    ),
    "regression": ([{"text": f"t{n}", "label": n / 2} for n in range(10)], (0.5, 1.5), "mae"),
    "tagging": (
        [{"words": ["x", str(n)], "tags": ["O", "B-PER"]} for n in range(10)],
        (["O", "O"], ["O", "B-PER"]), "accuracy",
    ),
    "translation": ([{"source": f"s{n}", "target": "ab"[n % 2]} for n in range(10)], "ab",
                    "exact_match"),
    "qa": ([{"id": n, "question": f"q{n}", "context": "c", "answers": ["a"]} for n in range(10)],
           "ab", "exact_match"),
}  # fmt: skip


@pytest.fixture
def labelled(make_run):
    def maker(name, task, examples, predicted):
        run = make_run(
            name, metrics=[{"step": 1, "valid_f1": 0.5, "valid_loss": 1.0}],
            metadata={"task": task, "metric": "f1"},
        )  # fmt: skip
        rows = [{**one, "predicted": predicted, "score": 0.5 + len(name)} for one in examples]
        (run / "predictions.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (run / "evaluation.json").write_text('{"main": "f1", "values": {"f1": 0.5}}')
        return read_run(run)

    return maker


@pytest.mark.parametrize("task", EXAMPLES)
def test_runs_with_other_held_out_examples_are_compared_on_the_common_ones(task, labelled):
    examples, predicted, metric = EXAMPLES[task]
    one = labelled("one", task, examples[:8], predicted[0])
    other = labelled("second", task, examples[2:], predicted[1])
    first, second = describe_differences([one, other])
    assert "examples differ: 6 are shared by all runs (one: 8, second: 8)" in first
    assert second.startswith("On these 6 examples: one ")
    assert second.count(metric) == 2
    if task == "classification":
        assert second == "On these 6 examples: one accuracy 0.5000, second accuracy 0.5000."
    reordered = labelled("third", task, examples[:8][::-1], predicted[1])
    assert describe_differences([one, reordered]) == []
    apart = labelled("fourth", task, examples[8:], predicted[0])
    (sentence,) = describe_differences([one, apart])
    assert "share no validation examples" in sentence
