"""Runs in order: at equal time, each question by itself, counts between them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from report_runs import FACTS, RunMaker, losses

from trivium.report import write_comparison
from trivium.report.ranking import rankings, text_ranking
from trivium.report.run_files import read_run

CAUSAL = '[model]\npreset = "{}"\n[objective]\nkind = "{}"\n'
COUNTS = {"unigram": 7.0, "n_gram": 5.5, "order": 5, "tokens": 1000, "judged": 100}


@pytest.fixture
def make(make_run: RunMaker):
    def maker(name: str, *valid: float, kind: str = "causal", counts: bool = True, **facts):
        folder = make_run(
            name,
            metrics=losses(*valid),
            recipe=CAUSAL.format(f"{name}-tiny", kind),
            facts={**FACTS, **facts},
        )
        if counts:
            (folder / "baselines.json").write_text(json.dumps(COUNTS))
        return read_run(folder)

    return maker


def test_runs_are_judged_when_the_shortest_has_ended(make):
    # Two seconds an evaluation: the long run's best comes too late.
    runs = [make("long", 6.6, 6.1, 5.9, 3.0), make("short", 6.5, 5.25, 5.4)]
    (ranking,) = rankings(runs, ["long", "short"])
    assert ranking.same_text
    assert ranking.seconds == 6.0
    found = [(line.place, line.name, line.loss, line.seconds) for line in ranking.lines]
    assert found == [
        (1, "short", 5.25, 4.0),
        (None, "5-gram counts", 5.5, None),
        (2, "long", 5.9, 6.0),
        (None, "word-frequency counts", 7.0, None),
    ]
    text = text_ranking(ranking)
    assert text.startswith("Next token, after 6 s")
    assert " 1. short" in text
    assert "12,345 parameters" in text


def test_masks_and_next_tokens_are_ranked_apart(make):
    runs = [
        make("a", 5.0),
        make("b", 4.0, kind="masked", counts=False),
        make("c", 6.0, kind="bidirectional-lm"),
        make("d", 3.0, kind="masked", counts=False),
    ]
    found = {one.title: [line.name for line in one.lines] for one in rankings(runs, list("abcd"))}
    assert found == {
        "Next token": ["a", "5-gram counts", "c", "word-frequency counts"],
        "Masked token": ["d", "b"],
    }
    assert rankings(runs[:2], ["a", "b"]) == []


def test_other_tokenizers_are_compared_by_bytes(make):
    runs = [make("a", 5.0), make("b", 6.0, unigram_loss=8.0, bytes_per_token=8.5)]
    (ranking,) = rankings(runs, ["a", "b"])
    assert not ranking.same_text
    assert [line.name for line in ranking.lines] == ["b", "a"]


def test_the_comparison_page_ranks(make, tmp_path: Path):
    runs = [make("slow", 6.5, 6.25), make("fast<", 6.0, 5.0)]
    html = write_comparison([run.folder for run in runs], tmp_path / "c.html").read_text("utf-8")
    assert "Ranking: Next token, after 4 s" in html
    places = [html.index(text) for text in ("<td>1.</td><td>fast&lt;", "5-gram counts", "2.</td>")]
    assert places == sorted(places)


def test_a_run_that_was_measured_later_is_still_there(make):
    runs = [make("quick", 6.0), make("slow", 5.0)]
    late = [{**record, "seconds": record["seconds"] * 10} for record in runs[1].metrics]
    runs[1] = dataclasses.replace(runs[1], metrics=tuple(late))
    (ranking,) = rankings(runs, ["quick", "slow"])
    assert ranking.seconds == 2.0
    assert [(line.name, line.seconds) for line in ranking.lines if line.place] == [
        ("slow", 20.0),
        ("quick", 2.0),
    ]


def test_the_time_is_that_of_training_not_of_measuring(make):
    run = make("mine", 6.0)
    records = [
        {**record, "seconds": 9.0} if "valid_loss" in record else record for record in run.metrics
    ]
    run = dataclasses.replace(run, metrics=tuple(records))
    (ranking,) = rankings([run, run], ["a", "b"])
    assert ranking.seconds == 2.0
