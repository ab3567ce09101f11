"""sentencepiece `.model` files: a protocol buffer (sentencepiece_model.proto), read as it is."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from trivium.errors import TokenizerError
from trivium.text.byte_level import merges_of_ranks
from trivium.text.roles import add_template, added_tokens
from trivium.text.symbols import SCORE_DIGITS, SPACE

# Numbers of sentencepiece_model.proto: the fields that decide how a model encodes, by message.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3  # of a piece
_MODEL_TYPE, _WHITESPACE_AS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # of the trainer
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 2, 3, 4  # of the normalizer
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = range(1, 5)

Piece = tuple[str, float, int]
"""Text, score (a log-probability, or minus the rank of a merge) and type."""


def load_sentencepiece(file: Path, config: Mapping[str, object]) -> tokenizers.Tokenizer:
    """Read a `.model` file; `config` may have `add_bos_token` and `add_eos_token`."""
    try:
        pieces, trainer, normalizer = _read_model(file.read_bytes())
    except Exception as error:  # of whatever kind: the bytes are no protocol buffer
        raise TokenizerError(f"{file} is no sentencepiece model: {error}.") from error
    is_unigram = trainer.get(_MODEL_TYPE, _UNIGRAM) == _UNIGRAM
    if not (is_unigram or trainer[_MODEL_TYPE] == _BPE) or trainer.get(_WHITESPACE_AS_SUFFIX):
        raise TokenizerError(
            f"{file} is a sentencepiece model of words, characters or with spaces as suffixes; "
            "only BPE and Unigram with spaces as prefixes can be read."
        )
    normal, control, defined = (
        [text for text, _, type in pieces if type == wanted]
        for wanted in (_NORMAL, _CONTROL, _USER_DEFINED)
    )
    byte_fallback = bool(trainer.get(_BYTE_FALLBACK))
    backend = tokenizers.Tokenizer(_model(pieces, is_unigram, byte_fallback))
    # A piece with a space inside crosses words, which then cannot be encoded one by one.
    crosses_words = any(SPACE in text[1:] for text in normal)
    backend.normalizer = _normalizer(normalizer, defined)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="never", split=not crosses_words
    )
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if normalizer.get(_ADD_DUMMY_PREFIX, True):
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_tokens([AddedToken(text, normalized=True, special=False) for text in defined])
    special = [text for text, _, type in pieces if type in (_UNKNOWN, _CONTROL)]
    backend.add_special_tokens(added_tokens(special))
    # `<s>` before and `</s>` after a text where the configuration beside the file says so.
    before = ["<s>"] if config.get("add_bos_token") and "<s>" in control else []
    after = ["</s>"] if config.get("add_eos_token") and "</s>" in control else []
    if before or after:
        add_template(backend, before, after, again=before)
    return backend


def _model(pieces: Sequence[Piece], is_unigram: bool, byte_fallback: bool) -> models.Model:
    unknown = next((index for index, piece in enumerate(pieces) if piece[2] == _UNKNOWN), 0)
    if is_unigram:
        scores = [(text, round(score, SCORE_DIGITS)) for text, score, _ in pieces]
        return models.Unigram(scores, unk_id=unknown, byte_fallback=byte_fallback)
    ranks = {text: -score for text, score, type in pieces if type == _NORMAL}
    return models.BPE(
        {text: index for index, (text, _, _) in enumerate(pieces)},
        list(merges_of_ranks(ranks)),
        unk_token=pieces[unknown][0],
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def _normalizer(fields: Mapping[int, Any], defined: Sequence[str]) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if fields.get(_CHARSMAP):
        # The first number is the size of its trie, for which the library reserves memory.
        (size,) = struct.unpack_from("<I", fields[_CHARSMAP])
        if size > len(fields[_CHARSMAP]):
            raise TokenizerError("its table of characters ends too early.")
        steps.append(normalizers.Precompiled(fields[_CHARSMAP]))
    if fields.get(_REMOVE_EXTRA_WHITESPACES, True):
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(Regex(r"\A | \z"), ""))
    if fields.get(_ADD_DUMMY_PREFIX, True):
        # Defined symbols are normalized too, alone, and must stay as they are.
        symbols = "|".join(re.escape(text) for text in defined)
        unless = rf"(?!(?:{symbols})\z)" if symbols else ""
        steps.append(normalizers.Replace(Regex(rf"\A{unless}(?=(?m:.))"), SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _read_model(data: bytes) -> tuple[list[Piece], dict[int, Any], dict[int, Any]]:
    """The pieces, and the fields of trainer and normalizer; an exception where `data` is none."""
    pieces: list[Piece] = []
    parts: dict[int, dict[int, Any]] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in _fields(data):
        if number == _PIECES:
            fields = dict(_fields(value))
            (score,) = struct.unpack("<f", fields.get(_SCORE, b"\0\0\0\0"))
            pieces.append((fields.get(_TEXT, b"").decode(), score, fields.get(_TYPE, _NORMAL)))
        elif number in parts:  # others are self-test data and extensions
            parts[number] = dict(_fields(value))
    if not pieces:
        raise ValueError("it holds no pieces")
    return pieces, parts[_TRAINER], parts[_NORMALIZER]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The (field number, value) pairs of a protocol buffer; fixed-size numbers stay bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} is unknown")
        if at + length > len(data):
            raise ValueError("it ends too early")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
