"""`trivium serve`: what it refuses before it begins."""

from __future__ import annotations

import socket

import pytest
from counting_models import counting_model

from trivium.cli import main
from trivium.cli import serve as verb
from trivium.models import Transformer
from trivium.serve import Limits
from trivium.serve.gate import Gate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    lm = counting_model("decoder", {"good": 3.0, "bad": 1.0})
    return lm.save(tmp_path_factory.mktemp("runs") / "mine")


@pytest.fixture
def begun(monkeypatch):
    """What a server would begin with; it does not."""
    seen = []

    def run(gate, listening, *, limits, ready):
        seen.append((gate, listening.getsockname(), limits))
        ready()

    monkeypatch.setattr(verb, "run", run)
    monkeypatch.delenv("TRIVIUM_API_KEY", raising=False)
    return seen


def test_it_says_where_and_what(folder, begun, capsys):
    assert main(["serve", str(folder), f"other={folder}", "--port", "0", "--no-playground"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("http://127.0.0.1:")
    assert err.strip().endswith("serves mine, other")
    gate, address, limits = begun[0]
    assert isinstance(gate, Gate)
    assert address[0] == "127.0.0.1"
    assert limits == Limits()


def test_limits_are_options(folder, begun):
    options = ["--rows", "3", "--max-queue", "5", "--max-tokens", "7", "--max-body", "11"]
    more = ["--timeout", "1.5", "--max-prompt", "13", "--max-texts", "17", "--grace", "2"]
    main(["serve", str(folder), "--port", "0", "--no-playground", *options, *more])
    assert begun[0][2] == Limits(
        rows=3,
        max_queue=5,
        max_tokens=7,
        max_body=11,
        timeout=1.5,
        max_prompt=13,
        max_texts=17,
        grace=2.0,
    )


@pytest.mark.parametrize("options", [[], ["--compile"]])
def test_models_are_compiled_where_that_is_wished(folder, begun, monkeypatch, options):
    loads, compiled, create = [], [], verb.create_app

    def hear(paths, *, load, **rest):
        loads.append(load)
        return create(paths, load=load, **rest)

    monkeypatch.setattr(verb, "create_app", hear)
    monkeypatch.setattr(Transformer, "compile_step", lambda model: compiled.append(model))
    assert main(["serve", str(folder), "--port", "0", "--no-playground", *options]) == 0
    found = loads[0](str(folder))
    assert compiled == [found.module] * len(options)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_others_need_a_key(folder, begun, capsys, host):
    assert main(["serve", str(folder), "--host", host, "--port", "0"]) == 1
    err = capsys.readouterr().err
    assert "lets other machines in" in err
    assert "TRIVIUM_API_KEY" in err
    assert not begun


def test_a_key_lets_others_in(folder, begun, monkeypatch):
    monkeypatch.setenv("TRIVIUM_API_KEY", "secret")
    options = ["--host", "0.0.0.0", "--port", "0", "--no-playground"]
    assert main(["serve", str(folder), *options]) == 0
    assert begun[0][1][0] == "0.0.0.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}", "{folder}"], "two models are called 'mine'"),
        (["{folder}/nothing/here"], "there is no such folder"),
        (["{folder}/spec.json"], "is a file"),
        (["=x"], "names no model"),
        (["{folder}", "--timeout", "0"], "timeout is 0.0, but must be above 0"),
        (["{folder}", "--api-key", " "], "the API key is empty"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, begun, capsys, arguments, message):
    given = [each.replace("{folder}", str(folder)) for each in arguments]
    assert main(["serve", *given, "--port", "0"]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("error: ")
    assert not begun


def test_a_port_that_is_taken(folder, begun, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(folder), "--port", port, "--no-playground"]) == 1
    assert f"127.0.0.1 port {port} cannot be had" in capsys.readouterr().err
