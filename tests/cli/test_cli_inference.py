"""`trivium fill-mask` and `trivium generate` on small models."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest
import torch

from trivium.cli import main
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.nn import sums
from trivium.nn.compiled import has_compiler
from trivium.presets import presets
from trivium.text import Tokenizer

TEXT = ["The weather was cloudy yesterday, but today it's rainy.", "今天天气很好。我们去公园。"]


def saved(path, preset: str, kind: str, vocab_size: int) -> str:
    tokenizer = Tokenizer.train(kind, texts=TEXT * 5, vocab_size=vocab_size, progress=False)
    spec = presets[preset].replace(vocab_size=320)
    return str(LanguageModel(spec, build(spec), tokenizer).save(path))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("encoder"), "bert-tiny", "wordpiece", 97)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("decoder"), "llama-tiny", "byte-bpe", 300)


@pytest.fixture
def stdin(monkeypatch):
    def give(data: bytes, *, terminal: bool = False) -> None:
        buffer = io.BytesIO(data)
        fake = types.SimpleNamespace(buffer=buffer, isatty=lambda: terminal)
        monkeypatch.setattr(sys, "stdin", fake)

    return give


def test_fill_mask(encoder, capsys):
    assert main(["fill-mask", encoder, "The [MASK] was cloudy.", "--top-k", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = load(encoder).fill_mask("The [MASK] was cloudy.", top_k=3)
    assert len(lines) == 3
    for line, fill in zip(lines, wanted, strict=True):
        assert line.split()[1] == fill.token
        assert line.endswith(fill.sequence)
        assert float(line.split()[0].rstrip("%")) == pytest.approx(100 * fill.score, abs=0.01)


def test_fill_mask_json_and_stdin(encoder, capsys, stdin):
    stdin("The [MASK] was cloudy.\r\n\n今天[MASK]气[MASK]\n".encode())
    assert main(["fill-mask", encoder, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["The [MASK] was cloudy.", "今天[MASK]气[MASK]"]
    assert [len(row["masks"]) for row in rows] == [1, 2]
    assert set(rows[0]["masks"][0][0]) == {"sequence", "token", "score"}


def test_fill_mask_several(encoder, capsys):
    assert main(["fill-mask", encoder, "The [MASK] was [MASK].", "--top-k", "2"]) == 0
    out = capsys.readouterr().out
    assert "mask 1 of 2" in out
    assert "mask 2 of 2" in out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["The weather"], "no [MASK] in the text"),
        (["[MASK] " * 600], "positions end at 512"),
    ],
)
def test_fill_mask_refuses(encoder, arguments, what, capsys):
    assert main(["fill-mask", encoder, *arguments]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert what in found.err
    assert found.err.count("\n") == 1


def test_stdin_that_is_not_utf8(encoder, capsys, stdin):
    stdin(b"[MASK] fine\nab\xff\n")
    assert main(["fill-mask", encoder]) == 1
    assert "line 2: not UTF-8 (byte 3 of the line)" in capsys.readouterr().err


def test_generate_equals_the_library(decoder, capsys):
    options = ["--max-new-tokens", "20", "--seed", "5", "--top-p", "0.9", "--temperature", "1.3"]
    assert main(["generate", decoder, "The weather", *options]) == 0
    wanted = load(decoder).generate(
        "The weather", max_new_tokens=20, seed=5, top_p=0.9, temperature=1.3
    )
    assert capsys.readouterr().out == f"The weather{wanted}\n"


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
def test_generate_compiled_writes_the_same(decoder, capsys, monkeypatch, tmp_path):
    arguments = ["generate", decoder, *TEXT, "--greedy", "--max-new-tokens", "20"]
    assert main(arguments) == 0
    expected = capsys.readouterr().out
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sums._compiled_sums.cache_clear()
    assert main([*arguments, "--compile"]) == 0
    assert capsys.readouterr().out == expected
    # What stands before the layers, and layers alike, once for any number of texts; these and sums
    # for one row and for few. Reading the prompt compiles nothing more.
    counts = {1, sums.summed_rows(torch.float32)}
    assert len(list(tmp_path.glob("trivium/compiled/*.pt2"))) == 2 + 2 * len(counts)


def test_generate_samples_json_and_stdin(decoder, capsys, stdin):
    stdin("The\n今天\n".encode())
    options = ["--json", "--num-samples", "2", "--seed", "5", "--max-new-tokens", "9"]
    assert main(["generate", decoder, *options]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["prompt"], row["seed"]) for row in rows] == [
        ("The", 5),
        ("The", 6),
        ("今天", 5),
        ("今天", 6),
    ]
    assert rows[0]["text"] == load(decoder).generate("The", seed=5, max_new_tokens=9)


def test_generate_many_lines_a_few_at_a_time(decoder, capsys, stdin):
    lines = [f"{word} weather" for word in ("The", "A", "No", "Some", "Any", "Good", "Bad")]
    stdin("\n".join(lines).encode())
    options = ["--seed", "5", "--max-new-tokens", "12", "--temperature", "1"]
    assert main(["generate", decoder, *options, "--rows", "3"]) == 0
    lm = load(decoder)
    texts = [lm.generate(line, seed=5, max_new_tokens=12, temperature=1.0) for line in lines]
    expected = "\n\n".join(line + text for line, text in zip(lines, texts, strict=True))
    assert capsys.readouterr().out == expected + "\n"


def test_what_was_asked_before_a_refusal_is_answered(decoder, capsys, stdin):
    stdin(b"The\nA\nab\xff\n")
    assert main(["generate", decoder, "--json", "--max-new-tokens", "9"]) == 1
    found = capsys.readouterr()
    assert [json.loads(line)["prompt"] for line in found.out.splitlines()] == ["The", "A"]
    assert "line 3: not UTF-8" in found.err


def test_generate_stops_and_chooses_and_guesses(decoder, capsys):
    greedy = ["--greedy", "--max-new-tokens", "20"]
    free = load(decoder).generate("The", temperature=0.0, max_new_tokens=20)
    stop = free[len(free) // 2 :][:2]
    assert main(["generate", decoder, "The", *greedy, "--stop", stop]) == 0
    assert capsys.readouterr().out == f"The{free[: free.find(stop)]}\n"
    for draft in ("lookup", decoder):
        assert main(["generate", decoder, "The", *greedy, "--draft", draft]) == 0
        assert capsys.readouterr().out == f"The{free}\n"
    assert main(["generate", decoder, "It is ", "--choice", "cold", "--choice", "dry"]) == 0
    assert capsys.readouterr().out in ("It is cold\n", "It is dry\n")
    assert main(["generate", decoder, "The", "--draft", "runs/nowhere"]) == 1


def test_generate_greedy_from_nothing(decoder, capsys, stdin):
    stdin(b"", terminal=True)
    assert main(["generate", decoder, "--greedy", "--max-new-tokens", "7"]) == 0
    wanted = load(decoder).generate("", temperature=0, max_new_tokens=7)
    assert capsys.readouterr().out == f"{wanted}\n"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--top-p", "1.5"], "top_p is 1.5"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--device", "nonsense"], "device 'nonsense'"),
    ],
)
def test_generate_refuses(decoder, options, what, capsys):
    assert main(["generate", decoder, "The", *options]) == 1
    assert what in capsys.readouterr().err


def test_wrong_kind_of_model(encoder, capsys):
    assert main(["generate", encoder, "The"]) == 1
    assert "cannot generate; it has logits, fill_mask, score" in capsys.readouterr().err


def test_missing_model(capsys):
    assert main(["generate", "runs/nowhere", "The"]) == 1
    assert "runs/nowhere: there is no such folder" in capsys.readouterr().err
