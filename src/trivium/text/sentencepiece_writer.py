"""Writes Unigram tokenizers as sentencepiece `.model` files (sentencepiece_model.proto)."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import tokenizers

from trivium.files import write_file
from trivium.text.sentencepiece_file import (
    ADD_DUMMY_PREFIX,
    CHARSMAP,
    CONTROL,
    ESCAPE_WHITESPACES,
    MODEL_TYPE,
    NORMAL,
    NORMALIZER,
    PIECES,
    REMOVE_EXTRA_WHITESPACES,
    SCORE,
    TEXT,
    TRAINER,
    TYPE,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
)
from trivium.text.symbols import SPACE

_UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 40, 41, 42, 43  # fields of the trainer
_STEPS = ("Precompiled", "Replace")
_FIRST = ("<unk>", "<s>", "</s>")


def sentencepiece_problem(backend: tokenizers.Tokenizer) -> str:
    """Return why a tokenizer cannot be written as a sentencepiece file, or "" if it can."""
    content = json.loads(backend.to_str())
    if content["model"]["type"] != "Unigram":
        return f"its model is {content['model']['type']}, not Unigram"
    steps = (content["normalizer"] or {}).get("normalizers", ())
    if not steps or any(step["type"] not in _STEPS for step in steps):
        return "its normalizer is not that of a sentencepiece file"
    return ""


def write_sentencepiece(file: Path, backend: tokenizers.Tokenizer, *, outside: float) -> None:
    """Write a Unigram tokenizer to a sentencepiece file.

    Special tokens other than `<unk>`, `<s>` and `</s>` are left out, because programs that read the
    file add their own special tokens.

    Args:
        file: the file to write.
        backend: a tokenizer for which `sentencepiece_problem` returns "".
        outside: pieces whose score is at most this value are left out.
    """
    content = json.loads(backend.to_str())
    added = {token["content"]: token["special"] for token in content["added_tokens"]}
    special = {text for text, is_special in added.items() if is_special}
    pieces = [(_FIRST[0], 0.0, UNKNOWN), *((text, 0.0, CONTROL) for text in _FIRST[1:])]
    for text, score in content["model"]["vocab"]:
        if text not in special and text not in _FIRST and score > outside:
            pieces.append((text, score, USER_DEFINED if text in added else NORMAL))
    data = b"".join(_field(PIECES, _message(_make_piece(*each))) for each in pieces)
    trainer = {MODEL_TYPE: UNIGRAM, _UNK_ID: 0, _BOS_ID: 1, _EOS_ID: 2, _PAD_ID: -1}
    data += _field(TRAINER, _message(trainer))
    data += _field(NORMALIZER, _message(_normalizer_fields(content["normalizer"]["normalizers"])))
    write_file(file, data)


def _make_piece(text: str, score: float, kind: int) -> dict[int, Any]:
    """Return the protobuf fields of a vocabulary piece: its text, score and type."""
    return {TEXT: text.encode(), SCORE: score, TYPE: kind}


def _normalizer_fields(steps: list[dict[str, Any]]) -> dict[int, Any]:
    """Return the protobuf fields of a NormalizerSpec for the steps of the normalizer."""
    tables = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    replaced = [step for step in steps if step["type"] == "Replace"]
    return {
        **({CHARSMAP: base64.b64decode(tables[0])} if tables and tables[0] else {}),
        ADD_DUMMY_PREFIX: int(
            any(step["content"] == SPACE and "Regex" in step["pattern"] for step in replaced)
        ),
        REMOVE_EXTRA_WHITESPACES: int(any(step["content"] == "" for step in replaced)),
        ESCAPE_WHITESPACES: 1,
    }


def _message(fields: dict[int, Any]) -> bytes:
    """Encode a protocol buffer message. `fields` maps field numbers to values."""
    return b"".join(_field(number, value) for number, value in fields.items())


def _field(number: int, value: bytes | float | int) -> bytes:
    """Encode one field of a protocol buffer message."""
    match value:
        case bytes():
            return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value
        case float():
            return _encode_varint(number << 3 | 5) + struct.pack("<f", value)
        case _:
            return _encode_varint(number << 3) + _encode_varint(value % 2**64)


def _encode_varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint, with seven bits in each byte."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
