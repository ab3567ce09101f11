"""`trivium serve`: its options, and what it refuses before it starts."""

from __future__ import annotations

import json
import socket

import pytest
from counting_models import counting_model

from trivium.cli import main
from trivium.serve import app, server
from trivium.serve.limits import Limits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    lm = counting_model("decoder", {"good": 3.0, "bad": 1.0})
    return lm.save(tmp_path_factory.mktemp("runs") / "mine")


@pytest.fixture
def started(monkeypatch):
    """What the server would be started with."""
    calls = []

    def run(app, listening, *, ready):
        calls.append((listening.getsockname(), app.registry.limits))
        ready()

    monkeypatch.setattr(server, "run_server", run)
    monkeypatch.delenv("TRIVIUM_API_KEY", raising=False)
    return calls


def test_options_become_limits(folder, started, capsys):
    options = ["--slots", "3", "--max-queue", "5", "--max-tokens", "7", "--timeout", "1.5"]
    arguments = ["serve", str(folder), f"other={folder}", "--port", "0", "--no-playground"]
    assert main([*arguments, *options]) == 0
    err = capsys.readouterr().err
    assert err.startswith("starting ...\nhttp://127.0.0.1:")
    assert "serves mine, other: a page at /" in err
    assert started[0][0][0] == "127.0.0.1"
    assert started[0][1] == Limits(slots=3, max_queue=5, max_tokens=7, timeout=1.5)


def test_adapters_are_served_beside_their_base(folder, started, capsys, tmp_path):
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "elsewhere"}
    (tmp_path / "poems").mkdir()
    (tmp_path / "poems" / "adapter_config.json").write_text(json.dumps(config))
    arguments = ["serve", str(folder), "--port", "0", "--no-playground"]
    adapter = str(tmp_path / "poems")
    assert main([*arguments, "--adapter", adapter, "--adapter", f"x={adapter}"]) == 0
    assert "serves mine, poems, x: a page at /" in capsys.readouterr().err
    assert main([*arguments, "--adapter", f"mine={adapter}"]) == 1
    assert "a model and an adapter are called 'mine'" in capsys.readouterr().err
    assert main([*arguments, "--adapter", f"y={folder}"]) == 1
    assert "is no adapter" in capsys.readouterr().err
    assert main([*arguments[:2], f"other={folder}", *arguments[2:], "--adapter", adapter]) == 1
    assert "is for elsewhere, and the server has mine, other" in capsys.readouterr().err


def test_other_machines_need_a_key(folder, started, capsys, monkeypatch):
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        assert main(["serve", str(folder), "--host", host, "--port", "0"]) == 1
        assert "TRIVIUM_API_KEY" in capsys.readouterr().err
    assert not started
    monkeypatch.setenv("TRIVIUM_API_KEY", "secret")
    options = ["--host", "0.0.0.0", "--port", "0", "--no-playground"]
    assert main(["serve", str(folder), *options]) == 0
    assert started[0][0][0] == "0.0.0.0"


def test_folders_without_a_model_are_named_at_the_start(folder, started, capsys, tmp_path):
    assert main(["serve", str(tmp_path), "--port", "0", "--no-playground"]) == 1
    assert "no model inside" in capsys.readouterr().err
    assert not started
    training = [str(folder), f"training={tmp_path}", "--port", "0", "--no-playground"]
    assert main(["serve", *training]) == 0
    first, _, second, _ = capsys.readouterr().err.splitlines()
    assert first.startswith(f"training cannot be served yet: {tmp_path}: no model inside")
    assert "serves mine, training: " in second


def test_a_port_that_is_taken_is_found_before_models_are_read(folder, capsys, monkeypatch):
    def create_app(*_, **options):
        raise AssertionError("the app is built first")

    monkeypatch.setattr(app, "create_app", create_app)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(folder), "--port", port]) == 1
    assert f"port {port} is not available" in capsys.readouterr().err


def test_mistakes_are_one_line(folder, started, capsys):
    for arguments, message in (
        ([str(folder), str(folder)], "'mine'"),
        ([f"{folder}/nothing/here"], "there is no such folder"),
        ([f"{folder}/spec.json"], "is a file"),
        (["=x"], "=x"),
        ([str(folder), "--api-key", " "], "the API key is empty"),
    ):
        assert main(["serve", *arguments, "--port", "0"]) == 1
        err = capsys.readouterr().err
        assert message in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(folder), "--port", port, "--no-playground"]) == 1
    assert port in capsys.readouterr().err
    assert not started
