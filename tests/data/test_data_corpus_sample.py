"""Random parts of a large corpus, from which a tokenizer is trained."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trivium.cli import app
from trivium.data import corpus_sample
from trivium.data.documents import ReadOptions, read_documents
from trivium.data.splitting import CorpusOptions, read_training_texts
from trivium.text.tokenizer import Tokenizer

MAX_BYTES = 40_000
TEXTS = [
    f"Text {number}: " + f"ein Wört von {number} Zeilen.\n" * (number % 7) for number in range(9000)
]
TEXTS = [text.strip() for text in TEXTS]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a corpus of half a megabyte be a large one."""
    monkeypatch.setattr(corpus_sample, "MIN_BYTES", 500_000)
    monkeypatch.setattr(corpus_sample, "_BLOCK", 1 << 10)
    monkeypatch.setattr(corpus_sample, "_LONGEST", 1 << 15)


def write(path: Path, separator: str) -> tuple[Path, ReadOptions]:
    """Write the texts to a file. Returns its path, and the options to read it."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        return path, ReadOptions()
    between = {"blank": "\n\n", "line": "\n"}.get(separator, separator)
    texts = [text.replace("\n", " ") for text in TEXTS] if separator == "line" else TEXTS
    path.write_text(between.join(texts), encoding="utf-8")
    return path, ReadOptions(separator)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("separator", ["blank", "line", "\n---\n"])
def test_parts_hold_whole_documents_of_all_places(
    tmp_path: Path, name: str, separator: str
) -> None:
    path, options = write(tmp_path / name, separator)
    everything = [document.text for document in read_documents(path, options)]
    assert len(everything) == len(TEXTS)
    place = {text: number for number, text in enumerate(everything)}
    chosen = [document.text for document in read_documents(path, options, max_bytes=MAX_BYTES)]
    places = [place[text] for text in chosen]  # a cut text would have no place
    assert places == sorted(set(places))
    assert 0.8 * MAX_BYTES < sum(len(text.encode()) for text in chosen) < 2 * MAX_BYTES
    thirds = [sum(place * 3 // len(TEXTS) == third for place in places) for third in range(3)]
    assert min(thirds) > len(places) // 6


def test_small_files_give_as_much_text(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS * 2):
        (tmp_path / f"{number}.txt").write_text(text)
    chosen = [document.text for document in read_documents(tmp_path, max_bytes=MAX_BYTES)]
    assert {*chosen} < {*TEXTS}
    assert MAX_BYTES < sum(len(text.encode()) for text in chosen) < 2 * MAX_BYTES


def test_validation_documents_are_left_out(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "a.txt", "blank")
    options = CorpusOptions(validation=0.3)
    everything = {*read_training_texts(path, options)}
    chosen = {*read_training_texts(path, options, max_bytes=MAX_BYTES)}
    assert chosen < everything < {*TEXTS}
    assert sum(len(text.encode()) for text in chosen) > 0.7 * MAX_BYTES


def test_other_corpora_are_read_as_a_whole(tmp_path: Path) -> None:
    path, options = write(tmp_path / "a.txt", "blank")
    compressed = tmp_path / "a.txt.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    utf16 = tmp_path / "b.txt"
    utf16.write_text(path.read_text(encoding="utf-8"), encoding="utf-16")
    long_texts = tmp_path / "long.txt"
    long_texts.write_text(path.read_text(encoding="utf-8").replace("\n\n", "\n"), encoding="utf-8")
    one_file = ReadOptions("file")
    for names, reading, limit in (
        ([compressed], options, MAX_BYTES),
        ([path, compressed], options, MAX_BYTES),
        ([utf16], ReadOptions(encoding="utf-16"), MAX_BYTES),
        ([long_texts], options, MAX_BYTES),
        ([path], one_file, MAX_BYTES),
        ([path], options, path.stat().st_size // 2),
    ):
        everything = [document.text for document in read_documents(names, reading)]
        chosen = read_documents(names, reading, max_bytes=limit)
        assert [document.text for document in chosen] == everything


def test_error_in_a_part_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "word " * 20}) + "\n" + '{"text": 1}\n' * 60_000)
    with pytest.raises(Exception, match=r'"text" of .*a\.jsonl from byte [0-9,]+ on, line \d+ is'):
        list(read_documents(path, max_bytes=MAX_BYTES))


def test_command_trains_on_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = write(tmp_path / "a.txt", "blank")
    read: list[int] = []
    train = Tokenizer.train.__func__  # type: ignore[attr-defined]

    def count_texts(cls: type, kind: str, *, texts: Iterable[str], **options: Any) -> Tokenizer:
        """Train a tokenizer and store the number of bytes that it was given."""
        texts = [*texts]
        read.append(sum(len(text.encode()) for text in texts))
        return train(cls, kind, texts=texts, **options)

    monkeypatch.setattr(Tokenizer, "train", classmethod(count_texts))
    out = tmp_path / "tokenizer.json"
    words = ["tokenizer", "train", str(path), "--kind", "byte-bpe", "--vocab-size", "300"]
    result = CliRunner().invoke(app, [*words, "--sample-bytes", str(MAX_BYTES), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert 0.8 * MAX_BYTES < read[0] < 2 * MAX_BYTES
    assert Tokenizer.load(out).vocab_size == 300
