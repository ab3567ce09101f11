from __future__ import annotations

import io
import sys
import types

import pytest
from typer.testing import CliRunner

from trivium.cli.prepare import app, summary
from trivium.cli.prepare import prepare as verb
from trivium.data import Shards
from trivium.data.prepare import prepare
from trivium.errors import DataError
from trivium.text import Tokenizer


@pytest.fixture
def texts(tmp_path, documents):
    path = tmp_path / "texts" / "a.txt"
    path.parent.mkdir()
    path.write_text("\n\n".join([*documents, documents[0]]), encoding="utf-8")
    return path.parent


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_trains_a_tokenizer_and_reuses_what_is_done(tmp_path, texts):
    out = tmp_path / "shards"
    command = [texts, "--out", out, "--kind", "wordpiece", "--vocab-size", "151"]
    result = run(*command, "--write-text", tmp_path / "split")
    assert result.exit_code == 0
    shards = Shards.open(out)
    assert shards.manifest.vocab_size == Tokenizer.load(out / "tokenizer.json").vocab_size == 151
    assert summary(shards) in result.output
    for expected in (
        "1 exact duplicate",
        "bytes a token",
        "validation",
        "nats a token by guessing",
    ):
        assert expected in result.output
    before = (out / "manifest.json").stat().st_mtime_ns
    again = run(*command)
    assert summary(shards) in again.output
    assert (out / "manifest.json").stat().st_mtime_ns == before
    assert {path.name for path in (tmp_path / "split").iterdir()} == {"train.txt", "validation.txt"}


def test_ids_are_those_of_the_tokenizer(tmp_path, texts, documents):
    tokenizer = Tokenizer.train("byte-bpe", texts=documents, vocab_size=307, progress=False)
    saved = tokenizer.save(tmp_path / "tokenizer.json")
    run(texts, "--out", tmp_path / "a", "--tokenizer", saved, "--validation", "0")
    split = Shards.open(tmp_path / "a").split("train")
    assert split.num_documents == 701
    for number in (0, 350, 700):
        ids = [*split.prefix_ids, *tokenizer.encode_ids_batch([documents[number]])[0]]
        assert split.document(number).tolist() == [*ids, *split.suffix_ids]
    direct = prepare(texts, tmp_path / "b", tokenizer, validation=0)
    assert direct.manifest == Shards.open(tmp_path / "a").manifest
    held = tmp_path / "valid.txt"
    held.write_text("a cat\n\n" + documents[5], encoding="utf-8")
    result = run(texts, "--out", tmp_path / "c", "--tokenizer", saved, "--validation", held)
    assert "1 training documents that stand in validation" in result.output


def test_mistakes_are_errors_of_ours(tmp_path, texts, monkeypatch):
    saved = Tokenizer.train("whitespace", texts=["a b"], vocab_size=11, progress=False)
    path = saved.save(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match="not both"):
        run(texts, "--out", tmp_path / "a", "--tokenizer", path, "--kind", "bpe")
    with pytest.raises(DataError, match="only once"):
        run("-", "--out", tmp_path / "a")
    with pytest.raises(DataError, match="no file or folder"):
        run(tmp_path / "none", "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    stdin = types.SimpleNamespace(buffer=io.BytesIO(b"a b\nb a\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    verb(["-"], tmp_path / "a", tokenizer=path, validation="0", separator="line")
    assert Shards.open(tmp_path / "a").split("train").num_documents == 2


def test_help_has_examples():
    output = run("--help").output
    assert "Examples" in output
    assert "--keep-duplicates" in output
