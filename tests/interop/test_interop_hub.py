"""Names on the Hugging Face hub: downloaded, in the cache, out of reach."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trivium import load
from trivium.bundled_models import BUNDLED_MODELS
from trivium.errors import CheckpointError
from trivium.interop.hub import find_folder
from trivium.presets import presets


@pytest.fixture
def hub(monkeypatch):
    """A double of `huggingface_hub`; returns the calls it gets."""
    calls = []

    def install(answer):
        def snapshot_download(name, *, revision, allow_patterns, ignore_patterns):
            calls.append((name if revision is None else (name, revision), allow_patterns[-1]))
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        return calls

    return install


def test_pickles_are_downloaded_only_where_there_is_nothing_else(hub, tmp_path):
    calls = hub(tmp_path)
    assert find_folder("gpt2") == tmp_path
    (tmp_path / "model.safetensors").touch()
    assert find_folder("org/name-1.5") == tmp_path
    patterns = [("gpt2", "*.safetensors*"), ("gpt2", "pytorch_model*")]
    assert calls == [*patterns, ("org/name-1.5", "*.safetensors*")]


def test_a_revision_can_be_pinned(hub, tmp_path):
    (tmp_path / "model.safetensors").touch()
    calls = hub(tmp_path)
    for name, revision in (("gpt2", "v1.0"), ("org/name-1.5", "refs/pr/3")):
        assert find_folder(f"{name}@{revision}") == tmp_path
        assert calls.pop()[0] == (name, revision)


def test_a_local_folder_comes_first(hub, tmp_path, monkeypatch):
    calls = hub(ValueError("not called"))
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_folder("org/name").is_dir()
    for path in (tmp_path / "nowhere", "./nowhere", "../nowhere", "a/b/c", "org/nam", "runs/mine"):
        with pytest.raises(CheckpointError, match="there is no such folder; "):
            find_folder(path)
    with pytest.raises(CheckpointError, match=r'org has name\. Did you mean "org/name"'):
        find_folder("org/nam")
    assert not calls


def test_a_bundled_model_comes_before_the_hub_and_after_a_local_folder(hub, tmp_path, monkeypatch):
    calls = hub(ValueError("not called"))
    monkeypatch.chdir(tmp_path)
    for name in BUNDLED_MODELS:
        folder = find_folder(name)
        assert (folder / "README.md").is_file()
        assert load(name).module.tokens.weight.dtype == torch.float32
        assert load(name, dtype="bfloat16").module.tokens.weight.dtype == torch.bfloat16
        (tmp_path / name).mkdir()
        with pytest.warns(UserWarning, match="the folder of this name here"):
            assert find_folder(name) == Path(name)
    assert not {*BUNDLED_MODELS} & {*presets}
    assert not calls


def test_out_of_reach_is_one_error(hub):
    for error in (OSError("no network."), ValueError("no such name"), KeyError()):
        hub(error)
        with pytest.raises(CheckpointError, match=r"org/name: there is no folder.*hub"):
            find_folder("org/name")


def test_a_folder_of_the_cache(tmp_path):
    folder = tmp_path / "models--org--name"
    snapshot = folder / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    assert find_folder(folder) == folder
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc123\n")
    assert find_folder(folder) == snapshot
    for outside in ("../other", "/etc", ".."):
        (folder / "refs" / "main").write_text(outside)
        with pytest.raises(CheckpointError, match="is not the name of a snapshot"):
            find_folder(folder)
