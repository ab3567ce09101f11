"""The report of a fine-tuned run: its figures, classes, confusion and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

from report_runs import RunMaker
from test_report_html import parsed
from typer.testing import CliRunner

from trivium.cli.report import app
from trivium.report import write_report
from trivium.report.run_files import read_run
from trivium.report.summary import summarize

RECIPE = '[task]\nkind = "classification"\n[model]\nstart = "bert-tiny"\n'
FACTS = {"valid_examples": 10, "train_examples": 77, "metric": "accuracy", "loss_terms": ["lm"]}


def records(*scores: float) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    for index, score in enumerate(scores, start=1):
        found.append({"step": 10 * index, "tokens": 100, "seconds": 1.0, "train_loss": 0.75})
        found.append(
            {"step": 10 * index, "tokens": 100, "seconds": 1.0, "valid_loss": 0.25 * index}
        )
        found[-1] |= {"valid_accuracy": score, "valid_lm": 3.5}
    return found


def evaluation(*, hits: int = 5) -> dict[str, object]:
    mistake = {
        "where": "a/b.jsonl, line 7",
        "text": "<b>odd</b>",
        "gold": "good",
        "confidence": 0.5,
    }
    return {
        "task": "classification",
        "metric": "accuracy",
        "score": (hits + 3) / 10,
        "figures": {"accuracy": (hits + 3) / 10, "macro_f1": 0.7654321, "count": 10},
        "table": [["Class", "F1", "Support"], ["good", "0.7000", "6"], ["bad", "0.8000", "4"]],
        "signatures": [],
        "names": ["good", "bad"],
        "confusion": [[hits, 6 - hits], [1, 3]],
        "mistakes": [mistake | {"predicted": "bad", "confidence": 0.5}],
    }


def run_of(make_run: RunMaker, measured: dict[str, object] | None, *scores: float) -> Path:
    folder = make_run(metrics=records(*scores), facts=FACTS, recipe=RECIPE)
    if measured is not None:
        (folder / "evaluation.json").write_text(json.dumps(measured))
    return folder


def test_it_shows_what_was_measured(make_run: RunMaker) -> None:
    checker, text = parsed(write_report(run_of(make_run, evaluation(), 0.5, 0.8, 0.6)))
    assert "bert-tiny, classifies texts" in text
    assert "accuracy 0.8000 on 10 held-out examples" in text
    assert "by the weights of step 20, the best of 3 evaluations" in text
    assert 'Always saying "good" would give 0.6000.' in text
    assert "0.7654 macro_f1" in text
    assert "By class" in text
    assert "good taken for bad: 1 of 6 (16.7%)" in text
    assert "<b>odd</b> good bad b.jsonl, line 7 50%" in text
    assert "accuracy on held-out examples" in text
    assert "validation, lm" in text
    assert "77" in text
    # The losses are not of tokens.
    assert "nats a token" not in text
    assert "perplexity" not in text
    assert not any(tag == "script" for tag, _ in checker.tags)


def test_one_answer_to_everything_is_said(make_run: RunMaker) -> None:
    folder = run_of(make_run, evaluation(hits=3), 0.6)
    checker, text = parsed(write_report(folder))
    assert 'no better than always saying "good" (0.6000)' in text
    assert summarize(read_run(folder)).stuck
    assert ("p", {"class": "verdict stuck"}) in checker.tags


def test_a_run_that_goes_on_is_shown_too(make_run: RunMaker) -> None:
    folder = run_of(make_run, None, 0.5, 0.75)
    _, text = parsed(write_report(folder))
    assert "accuracy 0.7500 so far, at step 20." in text
    assert "Results" not in text


def test_the_terminal_shows_the_metric(make_run: RunMaker) -> None:
    folder = run_of(make_run, evaluation(), 0.5, 0.8, 0.6)
    output = CliRunner().invoke(app, [str(folder)], catch_exceptions=False).output
    assert "     Step | Training loss | Validation loss |     accuracy" in output
    assert "       20 |        0.7500 |          0.5000 |       0.8000" in output
    assert "best            accuracy 0.8000 at step 20" in output


def test_losses_are_better_when_lower(make_run: RunMaker) -> None:
    recipe = RECIPE.replace("classification", "lm")
    metrics = [{**one, "valid_loss": one.get("valid_loss")} for one in records(0.5, 0.5)]
    metrics = [{k: v for k, v in one.items() if v is not None} for one in metrics]
    folder = make_run(metrics=metrics, facts={**FACTS, "metric": "loss"}, recipe=recipe)
    best = summarize(read_run(folder)).best
    assert best is not None
    assert best.step == 10


def test_damaged_evaluations_are_left_out(make_run: RunMaker) -> None:
    for broken in ({"table": [1, 2]}, {"confusion": [[1, 2]], "names": ["a"]}, {"mistakes": [3]}):
        folder = run_of(make_run, {**evaluation(), **broken}, 0.5)
        parsed(write_report(folder))
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
