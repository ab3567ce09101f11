"""Uploads to the hub by huggingface_hub's own client, to a hub on this machine."""

from __future__ import annotations

import socket

import pytest
import torch
import transformers
from fake_hub import READER, WRITER, fake_hub
from huggingface_hub import ModelCard, constants
from task_models import as_ours, theirs

from trivium import load
from trivium.cli import main
from trivium.errors import TriviumError
from trivium.interop.hub import push_folder

# By the client, of its own upload of a file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NAME = "ada/tiny-bert"
IDS = torch.tensor([[2, 7, 5, 11, 3]])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model with its class of `transformers`."""
    model = theirs("BertForMaskedLM")
    folder = tmp_path_factory.mktemp("models") / "saved"
    as_ours(model, "bert").save(folder)
    return folder, model


def test_a_pushed_model_loads_from_the_hub(saved, tmp_path, monkeypatch, capsys):
    folder, model = saved
    out = tmp_path / "out"
    with fake_hub(monkeypatch, tmp_path / "cache") as hub:
        assert main(["export", str(folder), str(out), "--push", NAME]) == 0
        printed = capsys.readouterr().out
        assert f"uploaded to {hub.endpoint}/{NAME}" in printed
        assert "README.md has 7 questions" in printed
        assert hub.private == {NAME: False}
        sent = {path: content for path, content in hub.files[NAME].items() if path[0] != "."}
        assert sent == {file.name: file.read_bytes() for file in out.iterdir()}
        assert ("PUT", f"/lfs/{next(iter(hub.objects))}") in hub.requests
        loaded = transformers.AutoModelForMaskedLM.from_pretrained(NAME)
        with torch.no_grad():
            torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)
        ours = load(NAME).logits(IDS)
        torch.testing.assert_close(ours, model(IDS).logits.detach())
        card = ModelCard.load(NAME)
        assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "fill-mask")
        assert card.data.license is None
        assert card.data.language is None
        assert f'model="{NAME}"' in card.text


def test_a_card_on_the_hub_is_kept(saved, tmp_path, monkeypatch):
    folder, out = saved[0], tmp_path / "out"
    with fake_hub(monkeypatch, tmp_path / "cache") as hub:
        assert main(["export", str(folder), str(out), "--push", NAME, "--private"]) == 0
        assert hub.private == {NAME: True}
        hub.files[NAME]["README.md"] = b"mine"
        (out / "new.json").write_text("{}")
        with pytest.warns(UserWarning, match=r"has a README\.md already, which was kept"):
            push_folder(out, NAME)
        assert hub.files[NAME]["README.md"] == b"mine"
        assert hub.files[NAME]["new.json"] == b"{}"


@pytest.mark.parametrize("name", ["name", "a/b/c", "/name", "org/", "org/a name", "org/a--b", "."])
def test_names_of_the_wrong_shape_are_refused_before_the_export(name, saved, tmp_path, capsys):
    assert main(["export", str(saved[0]), str(tmp_path / "out"), "--push", name]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert f"{name!r} is not the name of a model on the hub" in error
    assert "write OWNER/NAME" in error
    assert not (tmp_path / "out").exists()


def test_without_a_token_nothing_is_exported(saved, tmp_path, monkeypatch, capsys):
    with fake_hub(monkeypatch, tmp_path / "cache", token=None) as hub:
        assert main(["export", str(saved[0]), str(tmp_path / "out"), "--push", NAME]) == 1
        assert hub.requests == []
    (error,) = capsys.readouterr().err.splitlines()
    assert f"no token to upload {NAME} with: run `hf auth login`, or set HF_TOKEN" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("token", "message"),
    [("hf_wrong", "does not accept the token"), (READER, "the token has no right to write to")],
)
def test_tokens_without_rights(token, message, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    with fake_hub(monkeypatch, tmp_path / "cache", token=token) as hub:
        with pytest.raises(TriviumError, match=rf"{message}.*hf upload {NAME} {tmp_path}"):
            push_folder(tmp_path, NAME)
        assert hub.files == {}


def test_a_hub_that_cannot_be_reached(tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with fake_hub(monkeypatch, tmp_path / "cache", token=WRITER):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(
            TriviumError, match=f"{address} cannot be reached .*: check the network"
        ):
            push_folder(tmp_path, NAME)


@pytest.mark.parametrize(
    "options",
    [
        ("--push", NAME, "--format", "onnx"),
        ("--card", "--format", "gguf"),
        ("--private",),
        ("--push", NAME, "--card", "--format", "web"),
    ],
)
def test_options_that_do_not_fit(options, saved, tmp_path, capsys):
    assert main(["export", str(saved[0]), str(tmp_path / "out"), *options]) == 2
    assert " needs --" in capsys.readouterr().err
