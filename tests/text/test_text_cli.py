"""`trivium tokenizer` on small files."""

import json

import pytest
from typer.testing import CliRunner

from trivium.cli.tokenizer import app
from trivium.errors import TriviumError
from trivium.text import Tokenizer

RUNNER = CliRunner()
TEXT = "the weather was cloudy and the wind was cold\n\nthe day was warm\n" * 9


def run(*arguments: str, text: str | None = None) -> str:
    done = RUNNER.invoke(app, list(arguments), input=text, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    path = tmp_path / "tokenizer.json"
    run(
        *("train", "--kind", "wordpiece", "--vocab-size", "71", "--out", str(path)),
        *("--data", str(tmp_path / "text.txt")),
        *("--special-tokens", "[PAD] [UNK] [CLS] [SEP] [MASK] <S> <T>"),
    )
    return path


def test_train_encode_decode(tokenizer):
    loaded = Tokenizer.load(tokenizer)
    assert loaded.tokens[:7] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"]
    found = json.loads(run("encode", "-t", str(tokenizer), "--json", "The wind"))
    assert found["ids"] == list(loaded.encode("The wind").ids)
    ids = run("encode", "-t", str(tokenizer), "--ids", text="The wind\nwas cold\n").splitlines()
    assert len(ids) == 2
    assert run("decode", "-t", str(tokenizer), text="\n".join(ids)) == "the wind\nwas cold\n"
    assert "[CLS]" in run("decode", "-t", str(tokenizer), "--keep-special", *ids[0].split())


def test_training_tells_that_the_vocabulary_shrank(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    place = ["--out", str(tmp_path / "t"), "--data", str(tmp_path / "text.txt")]
    done = RUNNER.invoke(
        app,
        ["train", "--kind", "unigram", "--vocab-size", "4001", *place],
        catch_exceptions=False,
    )
    assert "instead of 4001" in done.output
    assert (tmp_path / "t" / "tokenizer.json").is_file()


def test_explain(tokenizer):
    bpe = json.loads(run("explain", "bpe", "the car | the cat | the rat", "--json"))
    assert bpe["merges"][0]["pair"] == ["h", "e"]
    assert bpe["merges"][0]["count"] == 3
    assert "U+4ECA" in run("explain", "bytes", "\u4eca\u5929")
    assert "4/27" in run("explain", "unigram", "ababc", "--vocab", "ab c")
    assert "1/8" in run("explain", "unigram", "aba", "--vocab", "a=0.5 b=0.5")
    assert "removed" in run("explain", "unigram", "hug pug | pun bun | hugs", "--vocab-size", "8")
    assert "##able" in run("explain", "wordpiece", "unaffable", "--vocab", "un ##aff ##able")
    shown = json.loads(run("explain", "wordpiece", "-t", str(tokenizer), "--json", "the wind"))
    assert shown["tokens"][0] == "the"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explain", "bpee", "x"], "bpe"),
        (["explain", "unigram", "x"], "--vocab"),
        (["explain", "wordpiece", "x"], "--vocab"),
        (["explain", "unigram", "x", "--vocab", "a=2"], "PROBABILITY"),
        (["explain", "bpe", " | "], "no text"),
        (["encode", "-t", "nowhere.json", "x"], "nowhere.json"),
    ],
)
def test_mistakes_are_named(arguments, says):
    with pytest.raises(TriviumError, match=says):
        run(*arguments)


def test_ids_must_be_numbers(tokenizer):
    with pytest.raises(TriviumError, match="whole numbers"):
        run("decode", "-t", str(tokenizer), "two")


@pytest.mark.parametrize("verb", ["train", "encode", "decode", "explain"])
def test_help_has_examples(verb):
    assert "Examples" in run(verb, "--help")
