"""`trivium report` on the command line."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from report_runs import RunMaker, losses
from typer.testing import CliRunner

from trivium.cli.report import app
from trivium.errors import CheckpointError


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_it_prints_the_table_and_the_path(make_run: RunMaker) -> None:
    folder = make_run()
    output = invoke(folder)
    assert "     Step | Training loss | Validation loss" in output
    assert "       20 |        6.6250 |          6.5000" in output
    assert "best            4.5000 nats a token at step 60" in output
    assert "word frequency  7.0000" in output
    assert str(folder / "report.html") in output
    assert (folder / "report.html").is_file()


def test_a_long_table_keeps_its_ends(make_run: RunMaker) -> None:
    output = invoke(make_run(metrics=losses(*(7.0 - index / 20 for index in range(50)))))
    assert "(20 of 50 evaluations)" in output
    assert "\n       20 |" in output
    assert "\n    1,000 |" in output


def test_out_names_the_file(make_run: RunMaker, tmp_path: Path) -> None:
    folder, out = make_run(), tmp_path / "new" / "page.html"
    assert str(out) in invoke(folder, "--out", out)
    assert out.is_file()
    assert not (folder / "report.html").exists()


def test_several_runs_make_a_comparison(
    make_run: RunMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = invoke(make_run("first"), make_run("second"))
    assert "comparison.html" in output
    assert (tmp_path / "comparison.html").is_file()


def test_open_shows_it(make_run: RunMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    folder = make_run()
    invoke(folder, "--open")
    assert shown == [(folder / "report.html").resolve().as_uri()]


def test_a_missing_run_is_an_error_before_anything_is_written(
    make_run: RunMaker, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    arguments = [str(make_run()), str(tmp_path / "none"), "--out", str(out)]
    with pytest.raises(CheckpointError, match="no such run folder"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not out.exists()
