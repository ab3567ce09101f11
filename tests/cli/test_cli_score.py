"""`trivium score`: numbers of the library, a line a text."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest
from counting_models import counting_model, log_probabilities

from trivium.cli import VERBS, main
from trivium.language_model import load

LOGITS = {"good": 3.0, "bad": 1.0, "a": 2.0, "b": 2.5}


@pytest.fixture(autouse=True)
def verb(monkeypatch):
    monkeypatch.setitem(VERBS, "score", ("trivium.cli.score", "How probable texts are."))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        family: str(counting_model(family, LOGITS).save(folder / family))
        for family in ("decoder", "encoder", "encoder-decoder")
    }


@pytest.fixture
def stdin(monkeypatch):
    def give(data: bytes) -> None:
        fake = types.SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", fake)

    return give


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_a_line_a_text(models, family, capsys):
    assert main(["score", models[family], "good a", "b"]) == 0
    known = log_probabilities(load(models[family]), LOGITS)
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{known['good'] + known['a']:.4f}\tgood a"
    assert second == f"{known['b']:.4f}\tb"


def test_json_per_token_and_stdin(models, capsys, stdin):
    stdin(b"good a\n\nb\n")
    arguments = ["--json", "--per-token", "--batch-size", "1"]
    assert main(["score", models["decoder"], *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    known = log_probabilities(load(models["decoder"]), LOGITS)
    assert [line["text"] for line in lines] == ["good a", "b"]
    assert [token["token"] for token in lines[0]["tokens"]] == ["good", "a"]
    for token in lines[0]["tokens"]:
        assert token["log_probability"] == pytest.approx(known[token["token"]], abs=1e-5)
    assert lines[0]["num_tokens"] == 2
    assert lines[0]["log_probability"] == pytest.approx(known["good"] + known["a"], abs=1e-5)


def test_tokens_a_line(models, capsys):
    assert main(["score", models["decoder"], "good b", "--per-token"]) == 0
    total, good, b = capsys.readouterr().out.splitlines()
    known = log_probabilities(load(models["decoder"]), LOGITS)
    assert total.endswith("\tgood b")
    assert good == f"  {known['good']:.4f}\tgood"
    assert b == f"  {known['b']:.4f}\tb"


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_what_follows_a_context(models, family, capsys):
    assert main(["score", models[family], "--given", "a b", "good", "bad b", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    known = log_probabilities(load(models[family]), LOGITS)
    assert [line["greedy"] for line in lines] == [True, False]
    assert lines[0]["log_probability"] == pytest.approx(known["good"], abs=1e-5)
    wanted = known["bad"] + known["b"]
    assert lines[1]["log_probability"] == pytest.approx(wanted, abs=1e-5)
    assert main(["score", models[family], "--given", "a b", "good"]) == 0
    assert capsys.readouterr().out == f"{known['good']:.4f}\tgood\n"


@pytest.mark.parametrize(
    ("family", "arguments", "what"),
    [
        ("encoder-decoder", ["good"], "--given"),
        ("decoder", ["good", "--given", "a", "--per-token"], "leave out --given"),
        ("decoder", ["good " * 99], "positions end at 61"),
    ],
)
def test_what_cannot_be_scored(models, family, arguments, what, capsys):
    assert main(["score", models[family], *arguments]) == 1
    found = capsys.readouterr()
    assert what in found.err
    assert found.err.count("\n") == 1
