"""Atomic writes, and text with decompression and exact places of errors."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os

import pytest
import zstandard

from trivium import files
from trivium.errors import DataError
from trivium.files import (
    has_sha256,
    open_text,
    read_json,
    replace_folder,
    sha256,
    write_file,
    write_json,
)

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def suffix_id(suffix):
    return suffix.lstrip(".") or "plain"


def read(path, **options):
    with open_text(path, **options) as file:
        return file.read()


def test_write_file_is_atomic_and_follows_the_umask(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    previous = os.umask(0o027)
    try:
        write_file(path, "é\n")
    finally:
        os.umask(previous)
    assert path.read_bytes() == "é\n".encode()
    assert path.stat().st_mode & 0o777 == 0o640
    write_file(path, b"second")
    monkeypatch.setattr(files.os, "fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_file(path, b"third")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_replace_folder_swaps_the_whole_folder(tmp_path):
    out = tmp_path / "deep" / "out"
    with replace_folder(out) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "new").write_text("1")
        assert not out.exists()
    with pytest.raises(FileNotFoundError), replace_folder(out) as folder:
        (folder / "missing" / "half").write_text("1")
    assert [path.name for path in out.rglob("*")] == ["sub", "new"]
    with replace_folder(out) as folder:
        (folder / "other").write_text("2")
    assert [path.name for path in out.rglob("*")] == ["other"]
    assert list(out.parent.iterdir()) == [out]


def test_the_old_folder_stays_until_the_new_name_is_on_the_disk(tmp_path, monkeypatch):
    out = tmp_path / "out"
    for text in ("old", "new"):
        with contextlib.suppress(KeyboardInterrupt), replace_folder(out) as folder:
            (folder / "file").write_text(text)
            if text == "new":
                monkeypatch.setattr(files, "sync", power_failure(out.parent))
    assert {path.read_text() for path in tmp_path.rglob("file")} == {"old", "new"}


def power_failure(folder):
    def fail(path):
        if path == folder:
            raise KeyboardInterrupt

    return fail


def test_json_and_checksum(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"猫": [1, 2]})
    assert read_json(path) == {"猫": [1, 2]}
    assert "猫" in path.read_text(encoding="utf-8")
    assert sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("{")
    with pytest.raises(DataError, match=r"a\.json cannot be read as JSON"):
        read_json(path)
    with pytest.raises(DataError, match="no such file"):
        read_json(tmp_path / "b.json")


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    hashed = []
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path) or sha256(path))
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    digest, other = sha256(path), hashlib.sha256(b"two").hexdigest()
    for _ in range(3):  # written a moment ago: another write might not change the time
        assert has_sha256(path, digest)
    assert len(hashed) == 3
    os.utime(path, (10**9, 10**9))
    assert [has_sha256(path, digest) for _ in range(3)] == [True] * 3
    assert len(hashed) == 4
    assert not has_sha256(path, other)
    assert len(hashed) == 5
    path.write_bytes(b"two")
    os.utime(path, (10**9 + 1, 10**9 + 1))
    assert not has_sha256(path, digest)
    assert has_sha256(path, other)
    assert len(hashed) == 7
    monkeypatch.setenv("TRIVIUM_CACHE", str(path))  # no folder can be made there
    assert has_sha256(path, other)


@pytest.mark.parametrize("suffix", COMPRESS, ids=suffix_id)
def test_text_of_every_compression(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 5)
    text = "\n\nÉté 猫\nsecond 🦉\u2028still\x0c\n \t\nlast without end"
    path = tmp_path / f"a.txt{suffix}"
    for end in ("\n", "\r\n", "\r"):
        for mark in (b"", b"\xef\xbb\xbf"):
            path.write_bytes(COMPRESS[suffix](mark + text.replace("\n", end).encode()))
            assert read(path) == text
    for name in ("utf-8", "UTF-8", "utf8"):  # one encoding: the mark is dropped
        with files.open_text(path, encoding=name) as file:
            assert file.read() == text


def test_frames_of_zstandard_are_read_one_after_the_other(tmp_path):
    frames = COMPRESS[".zst"](b"one ") + COMPRESS[".zst"](b"two")
    (tmp_path / "b.zst").write_bytes(frames)
    assert read(tmp_path / "b.zst") == "one two"


@pytest.mark.parametrize("suffix", COMPRESS, ids=suffix_id)
def test_invalid_utf8_names_the_line(suffix, tmp_path):
    path = tmp_path / f"bad.txt{suffix}"
    data = bytearray("猫\n\n".encode() * 20_000)
    data[5 * 7 + 1] = 0xFF
    path.write_bytes(COMPRESS[suffix](bytes(data)))
    with pytest.raises(DataError, match=r"bad\.txt.*, line 15 .*byte 0xe7 at 0.*replace"):
        read(path)
    assert "\ufffd" in read(path, errors="replace")


def test_a_character_cut_at_the_end_names_its_line(tmp_path):
    path = tmp_path / "cut.txt"
    path.write_bytes("one\nso 猫".encode()[:-1])
    with pytest.raises(DataError, match="line 2 is not valid"):
        read(path)
    assert read(path, errors="replace") == "one\nso \ufffd"


def test_damaged_and_binary_files(tmp_path):
    for name, data, message in (
        ("a.txt", b"text\0more", "binary file .a zero byte at 4"),
        ("a.txt", "text".encode("utf-16"), "UTF-16"),
        ("a.pdf", b"%PDF-1.7\n\0\0", "is a PDF, not text"),
        ("b.pdf", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj", "is a PDF, not text"),
        ("c.txt", b"%PDF-1.4\n1 0 obj", "is a PDF, not text"),
        ("d.txt", b"{\\rtf1 Hello}", "is RTF, not text"),
        ("e.csv", b"PK\x03\x04table", "is a ZIP archive"),
        ("a.txt.gz", b"plain", "damaged or not|cannot be read"),
        ("a.txt.bz2", b"plain", "damaged or not|cannot be read"),
        ("a.txt.xz", b"plain", "damaged or not"),
        ("a.txt.zst", b"plain", "damaged or not"),
        ("a.txt.gz", gzip.compress(b"words " * 99, mtime=0)[:-9], "damaged|cannot be read"),
        ("a.txt.bz2", bz2.compress(b"words " * 99)[:-9], "damaged|cannot be read"),
        ("a.txt.xz", lzma.compress(b"words " * 99)[:-9], "damaged"),
        ("a.txt.zst", COMPRESS[".zst"](bytes(range(1, 128)) * 99)[:-9], "damaged"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(DataError, match=message) as error:
            read(path)
        assert path.name in str(error.value)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read(tmp_path / "missing.txt")
