"""Names on the Hugging Face hub: fetched, found in the cache, out of reach."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from trivium.errors import CheckpointError, MissingExtraError
from trivium.interop.hub import find_folder


@pytest.fixture
def hub(monkeypatch):
    """Stands for `huggingface_hub`; what it was asked for, and what it gives."""
    asked = []

    def install(answer):
        def snapshot_download(name, *, allow_patterns, ignore_patterns):
            asked.append((name, allow_patterns[-1]))
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

        fake = SimpleNamespace(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
        return asked

    return install


def test_a_name_is_fetched(hub, tmp_path):
    (tmp_path / "model.safetensors").touch()
    asked = hub(tmp_path)
    assert find_folder("org/name-1.5") == tmp_path
    assert asked == [("org/name-1.5", "*.safetensors*")]


def test_pickles_are_fetched_only_where_there_is_nothing_else(hub, tmp_path):
    asked = hub(tmp_path)
    assert find_folder("gpt2") == tmp_path
    assert [pattern for _, pattern in asked] == ["*.safetensors*", "pytorch_model*"]


def test_a_folder_here_comes_first(hub, tmp_path, monkeypatch):
    asked = hub(ValueError("never asked"))
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_folder("org/name").is_dir()
    for path in (tmp_path / "nowhere", "./nowhere", "../nowhere", "a/b/c"):
        assert not find_folder(path).exists()
    assert not asked


@pytest.mark.parametrize("error", [OSError("no network."), ValueError("no such name"), KeyError()])
def test_out_of_reach_is_one_error(hub, error):
    hub(error)
    with pytest.raises(CheckpointError, match="there is no such folder, and no model of that name"):
        find_folder("org/name")


def test_offline_with_the_real_library():
    pytest.importorskip("huggingface_hub")
    with pytest.raises(CheckpointError, match="org/no-such-model: there is no such folder"):
        find_folder("org/no-such-model")


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"org/name: .*pip install 'trivium\[hub\]'"):
        find_folder("org/name")


def test_a_folder_of_the_cache(tmp_path):
    folder = tmp_path / "models--org--name"
    snapshot = folder / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    assert find_folder(folder) == folder
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc123\n")
    assert find_folder(folder) == snapshot


def test_the_cache_is_used_offline(tmp_path):
    library = pytest.importorskip("huggingface_hub")
    snapshot = tmp_path / "models--org--kept" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").touch()
    (tmp_path / "models--org--kept" / "refs").mkdir()
    (tmp_path / "models--org--kept" / "refs" / "main").write_text("0" * 40)
    before = library.constants.HF_HUB_CACHE
    found = library.snapshot_download("org/kept", cache_dir=tmp_path)
    assert before == library.constants.HF_HUB_CACHE
    assert find_folder(found) == snapshot
