"""What users get wrong before training: one clear message, and nothing left behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from trivium.cli import main
from trivium.errors import TriviumError
from trivium.workflows.pretrain import pretrain

CHANGES = {
    "tokenizer": {"vocab_size": 120},
    "data": {"length": 16},
    "train": {"steps": 2, "batch_tokens": 64, "eval_tokens": 64},
}


def words(count: int) -> str:
    chance = random.Random(3)
    documents = [" ".join(chance.choices("abcdefgh", k=20)) for _ in range(count)]
    return "\n\n".join(documents)


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        (b"", {}, "empty"),
        (b"\x00\x01\x02binary\x00" * 100, {}, "binary"),
        (b"caf\xe9 au lait\n\nmore", {}, r"byte.*3|offset 3"),
        (b"too short", {"data": {"validation": 0.0}}, "less than one row"),
        (words(3).encode(), {"data": {"validation": 1e-9}}, "validation"),
        (words(99).encode(), {"tokenizer": {"kind": "byte-bpe", "vocab_size": 9}}, "25[67]"),
        (words(99).encode(), {"tokenizer": {"vocab_size": 7}}, "alphabet|characters"),
        (words(99).encode(), {"data": {"length": 600}}, "positions end at 512"),
        (words(99).encode(), {"objective": {"kind": "causal"}}, "head"),
        (
            words(99).encode(),
            {"tokenizer": {"special_tokens": ["[PAD]", "[UNK]"]}},
            r"mask token.*\[MASK\]",
        ),
    ],
)
def test_bad_text_and_settings_leave_nothing_behind(
    tmp_path: Path, content: bytes, changes: dict, message: str
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_bytes(content)
    merged = {key: {**CHANGES.get(key, {}), **changes.get(key, {})} for key in {*CHANGES, *changes}}
    with pytest.raises(TriviumError, match=f"(?is){message}"):
        pretrain("bert-tiny", data=text, out=out, changes=merged)
    assert not out.exists()


def test_missing_path_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    code = main(["pretrain", "bert-tiny", "--data", str(tmp_path / "no.txt"), "--out", str(out)])
    said = capsys.readouterr().err
    assert code == 1
    assert "no.txt" in said
    assert "Traceback" not in said
    assert not out.exists()


def test_unknown_key_on_the_command_line_suggests_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    code = main(
        ["pretrain", "bert-tiny", "--data", "x", "--out", str(out), "--set", "train.step=5"]
    )
    assert code == 1
    assert '"steps"' in capsys.readouterr().err
    assert not out.exists()


def test_invalid_utf8_can_be_replaced(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(words(99).encode() + b"\n\ncaf\xe9 au lait")
    arguments = ["pretrain", "bert-tiny", "--data", str(text), "--out", str(tmp_path / "run")]
    for section, values in CHANGES.items():
        arguments += [f"--set={section}.{key}={value}" for key, value in values.items()]
    assert main(arguments) == 1
    assert main([*arguments, "--errors", "replace"]) == 0
