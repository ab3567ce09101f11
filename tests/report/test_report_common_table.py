"""One table of any runs: the columns that apply, as text, JSON and CSV."""

from __future__ import annotations

import csv
import errno
import io
import json
import math

import pytest
from report_runs import FACTS, RECIPE, losses
from terminals import on_terminal

from trivium.cli import main
from trivium.report import read_run
from trivium.report.common_table import make_run_table

OBJECTIVE = '[model]\npreset = "bert-tiny"\n[objective]\nkind = "{}"\n[optimizer]\nlr = {}\n'


def of_task(make_run, name, task, metric, value, lr=1e-3):
    """A finished run of a task whose final metric differs from that of its last evaluation."""
    record = {"step": 20, "tokens": 99, "seconds": 3.0, "valid_loss": 0.75, f"valid_{metric}": 0.5}
    return make_run(
        name, metrics=[*losses(0.9)[:2], record], recipe=OBJECTIVE.format(task, lr),
        metadata={"task": task, "metric": metric, "num_parameters": 7, "weights_step": 20},
        evaluation={"main": metric, "values": {metric: value, "other": None}},
    )  # fmt: skip


@pytest.fixture
def runs(make_run):
    causal = OBJECTIVE.format("causal", 0.5)
    return {
        "text": [make_run("a", recipe=causal), make_run("b", metrics=losses(3.0), recipe=RECIPE)],
        "labelled": [
            of_task(make_run, "c", "classification", "accuracy", 0.8),
            of_task(make_run, "d", "classification", "accuracy", 1.0, lr=2e-3),
        ],
        "mixed": [
            make_run("e"),
            of_task(make_run, "f", "tagging", "f1", 0.25),
            of_task(make_run, "g", "translation", "bleu", 0.125),
        ],
    }


@pytest.mark.parametrize(
    ("kind", "results"),
    [
        (
            "text",
            {"loss": [4.5, 3.0], "bits_per_byte": [pytest.approx(4.5 / math.log(2) / 4.25), None]},
        ),
        ("labelled", {"loss": [0.75, 0.75], "accuracy": [0.8, 1.0], "optimizer.lr": [1e-3, 2e-3]}),
        (
            "mixed",
            {"loss": [4.5, 0.75, 0.75], "f1": [None, 0.25, None], "bleu": [None, None, 0.125]},
        ),
    ],
)
def test_the_table_has_the_columns_that_apply_in_every_form(
    kind, results, runs, capsys, monkeypatch, tmp_path
):
    folders = [str(folder) for folder in runs[kind]]
    monkeypatch.chdir(tmp_path)
    assert main(["report", *folders, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == make_run_table([read_run(folder) for folder in folders])
    for key, values in results.items():
        assert [row[key] for row in rows] == values
    assert {"loss", "f1", "accuracy", "bleu", "bits_per_byte"} & set(rows[0]) == {
        key for key in results if "." not in key
    }
    assert all(set(row) == set(rows[0]) for row in rows)
    assert main(["report", *folders, "--csv"]) == 0
    cells = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["run"] for row in cells] == [row["run"] for row in rows]
    for key, values in results.items():
        assert [float(row[key]) if row[key] else None for row in cells] == values
    assert list(tmp_path.glob("*.html")) == []
    assert main(["report", *folders]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    names = heading.split()
    assert {"run", "loss", "time"} <= set(names)
    assert set(names) >= {key for key in results if key in ("accuracy", "f1", "bleu")}
    assert [line.split()[0] for line in lines[: len(rows)]] == [row["run"] for row in rows]


def test_the_losses_of_a_run_are_those_of_the_weights_that_it_keeps(make_run):
    run = read_run(make_run(metrics=losses(5.0, 4.0, 6.0), metadata={**FACTS, "weights_step": 40}))
    assert run.validation_metrics == {"loss": 4.0}
    unfinished = read_run(make_run("on", metrics=losses(5.0, 4.0, 6.0)))
    assert unfinished.validation_metrics == {"loss": 6.0}
    assert read_run(make_run("no", metrics=losses(5.0)[:1])).validation_metrics == {}


def test_runs_are_printed_in_one_form_only(make_run, capsys):
    run = str(make_run())
    for others in (["--csv"], ["--out", "page.html"], ["--open"]):
        assert main(["report", run, "--json", *others]) == 2
        assert "give either --json or --csv, without --out and --open" in " ".join(
            capsys.readouterr().err.split()
        )


@pytest.mark.parametrize("kind", ["text", "labelled", "mixed"])
@pytest.mark.parametrize("columns", [60, 80, 120, 140])
def test_the_printed_table_keeps_names_and_numbers_on_every_terminal(
    kind, columns, runs, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    arguments = ["report", *map(str, runs[kind])]
    assert main(arguments) == 0
    piped, _, _ = capsys.readouterr().out.partition("\n\n")
    text = on_terminal(arguments, columns, monkeypatch)
    shown = text.split()
    assert {cell for cell in piped.split() if cell not in shown} == set()
    assert len({len(line) for line in piped.splitlines()}) == 1  # numbers end on the right


def test_a_report_that_cannot_be_written_into_its_run_names_the_option(
    make_run, capsys, monkeypatch, tmp_path
):
    def write_file(path, *_):
        if path.resolve().parent.name in ("a", "locked"):
            raise OSError(errno.EROFS, "Read-only file system", f".{path.name}.tmp")
        path.write_text("")

    monkeypatch.setattr("trivium.report.html_report.write_file", write_file)
    folder, other = str(make_run("a")), str(make_run("b"))
    (tmp_path / "locked").mkdir()
    monkeypatch.chdir(tmp_path / "locked")
    for runs in ([folder], [folder, other]):
        assert main(["report", *runs]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "Read-only file system" in error
        assert "--out FILE" in error
        assert main(["report", *runs, "--out", str(tmp_path / "new" / "x.html")]) == 0
        assert main(["report", *runs, "--out", str(tmp_path / "locked" / "x.html")]) == 1
        assert "--out FILE" not in capsys.readouterr().err
