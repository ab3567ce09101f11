"""Texts and shards in object storage: the same as those on the disk."""

from __future__ import annotations

import gzip
import json

import pytest

from trivium.cli import main
from trivium.data import Shards, prepare, read_documents
from trivium.data.documents import list_text_sources
from trivium.data.prepare import prepare_part
from trivium.data.shards import has_shards
from trivium.errors import DataError
from trivium.remote import list_remote

fsspec = pytest.importorskip("fsspec")
MemoryFile = pytest.importorskip("fsspec.implementations.memory").MemoryFile


@pytest.fixture
def storage(monkeypatch, tmp_path):
    """An empty object storage in memory."""
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    return system


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_texts_are_read_and_shards_written_and_read(storage, tmp_path, documents, tokenizer):
    half = len(documents) // 2
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(documents[:half]), "utf-8")
    lines = "\n".join(json.dumps({"text": text}) for text in documents[half:])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (folder / "c.png").write_bytes(b"\0")
    for file in folder.iterdir():
        storage.put_file(str(file), f"/bucket/in/{file.name}")
    found = list_text_sources("memory://bucket/in")
    assert [one.size for one in found.sources] == [
        (folder / name).stat().st_size for name in ("a.txt", "b.jsonl.gz")
    ]
    assert all(one.modified for one in found.sources)
    assert found.skipped == ("memory:///bucket/in/c.png",)
    for paths in ("memory://bucket/in", "memory://bucket/in/[ab].*"):
        assert [document.text for document in read_documents(paths)] == documents
    local = prepare.prepare(folder, tokenizer, tmp_path / "local")
    url = "memory://bucket/shards"
    assert not has_shards(url)
    prepare.prepare("memory://bucket/in", tokenizer, url)
    assert has_shards(url)
    assert not has_shards("memory://bucket/in")
    before = len(list((tmp_path / "cache").iterdir()))
    for _ in range(2):
        opened = Shards.open(url)
        same, other = contents(local.folder), contents(opened.folder)
        assert {*same} == {*other}
        assert all(same[name] == other[name] for name in same if name != "manifest.json")
        assert len(list((tmp_path / "cache").iterdir())) == before + 1
    assert main(["check", url, "--json"]) == 0
    # Prepared anew under the same address.
    fewer = prepare.prepare(folder / "a.txt", tokenizer, tmp_path / "fewer")
    for file in fewer.folder.iterdir():
        storage.put_file(str(file), f"/bucket/shards/{file.name}")
    assert contents(Shards.open(url).folder) == contents(fewer.folder)


def test_what_is_missing_is_said(storage, tokenizer):
    for url, message in (
        ("memory://bucket/none", "There is no object memory://bucket/none"),
        ("memory://bucket/*.txt", "There is no object"),
        ("nothing://bucket/in", "Protocol not known"),
    ):
        with pytest.raises(DataError, match=message):
            list_text_sources(url)
    storage.pipe("/bucket/a.png", b"\0")
    with pytest.raises(DataError, match="no file that can be read"):
        list_text_sources("memory://bucket")
    assert list_remote("memory://bucket/a.png")[0][1] == 1
    with pytest.raises(DataError, match="cannot be read"):
        Shards.open("memory://bucket/in")
    with pytest.raises(DataError, match="folder that all machines share"):
        prepare_part("memory://bucket", tokenizer, "memory://bucket/out", 1, 2)


def test_shards_in_object_storage_write_nothing_outside_of_their_copy(
    storage, tmp_path, documents, tokenizer
):
    (tmp_path / "in.txt").write_text("\n\n".join(documents), "utf-8")
    url = "memory://bucket/a/shards"
    prepare.prepare(tmp_path / "in.txt", tokenizer, url)
    for name in ("../../outside.txt", "..", "inside/../../../outside.txt", "inside/a.txt"):
        path = f"/bucket/a/shards/{name}"  # object storage takes any name
        storage.store[path] = MemoryFile(storage, path, b"evil")
    before = {*tmp_path.rglob("*")}
    opened = Shards.open(url)
    assert opened.split("train").num_documents
    copied = {*tmp_path.rglob("*")} - before
    assert {path.parent for path in copied} <= {opened.folder, opened.folder.parent, tmp_path}
    assert not [path for path in copied if path.is_file() and path.read_bytes() == b"evil"]
