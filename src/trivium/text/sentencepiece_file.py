"""Loads sentencepiece `.model` files: protocol buffers, defined in sentencepiece_model.proto."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from trivium.errors import TokenizerError
from trivium.text.byte_level import derive_merges
from trivium.text.roles import add_template, to_added_tokens
from trivium.text.symbols import SCORE_DIGITS, SPACE

# Field numbers in sentencepiece_model.proto, for the fields that affect the encoding.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
TEXT, SCORE, TYPE = 1, 2, 3  # of a piece
MODEL_TYPE, _WHITESPACE_AS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # of the trainer
CHARSMAP, ADD_DUMMY_PREFIX, REMOVE_EXTRA_WHITESPACES, ESCAPE_WHITESPACES = 2, 3, 4, 5  # normalizer
UNIGRAM, _BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = range(1, 5)

Piece = tuple[str, float, int]
"""The text, score and type of a piece.

The score is a log-probability (Unigram), or minus the rank of a merge (BPE).
"""


def load_sentencepiece(file: Path, config: Mapping[str, object]) -> tokenizers.Tokenizer:
    """Load a sentencepiece `.model` file as a tokenizer.

    `config` is the content of `tokenizer_config.json`, of which only `add_bos_token` and
    `add_eos_token` are used.

    Raises TokenizerError if the file is not a Unigram or BPE model.
    """
    try:
        pieces, trainer, normalizer = _read_model(file.read_bytes())
    except Exception as error:  # of any type if the bytes are not a protocol buffer
        raise TokenizerError(f"{file} is not a sentencepiece model: {error}.") from error
    is_unigram = trainer.get(MODEL_TYPE, UNIGRAM) == UNIGRAM
    if not (is_unigram or trainer[MODEL_TYPE] == _BPE) or trainer.get(_WHITESPACE_AS_SUFFIX):
        raise TokenizerError(
            f"{file} is a sentencepiece model of words, characters or with spaces as suffixes; "
            "only BPE and Unigram with spaces as prefixes can be read."
        )
    normal, control, defined = (
        [text for text, _, type in pieces if type == wanted]
        for wanted in (NORMAL, CONTROL, USER_DEFINED)
    )
    byte_fallback = bool(trainer.get(_BYTE_FALLBACK))
    backend = tokenizers.Tokenizer(_build_model(pieces, is_unigram, byte_fallback))
    # If a piece contains a space inside, words cannot be encoded one by one.
    crosses_words = any(SPACE in text[1:] for text in normal)
    backend.normalizer = _build_normalizer(normalizer, defined)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="never", split=not crosses_words
    )
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if normalizer.get(ADD_DUMMY_PREFIX, True):
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_tokens([AddedToken(text, normalized=True, special=False) for text in defined])
    special = [text for text, _, type in pieces if type in (UNKNOWN, CONTROL)]
    backend.add_special_tokens(to_added_tokens(special))
    # The configuration in the same folder decides whether `<s>` and `</s>` are added to a text.
    before = ["<s>"] if config.get("add_bos_token") and "<s>" in control else []
    after = ["</s>"] if config.get("add_eos_token") and "</s>" in control else []
    if before or after:
        add_template(backend, before, after, again=before)
    return backend


def _build_model(pieces: Sequence[Piece], is_unigram: bool, byte_fallback: bool) -> models.Model:
    """Build the Unigram or BPE model of the `tokenizers` library from sentencepiece pieces."""
    unknown = next((index for index, piece in enumerate(pieces) if piece[2] == UNKNOWN), 0)
    if is_unigram:
        scores = [(text, round(score, SCORE_DIGITS)) for text, score, _ in pieces]
        return models.Unigram(scores, unk_id=unknown, byte_fallback=byte_fallback)
    ranks = {text: -score for text, score, type in pieces if type == NORMAL}
    return models.BPE(
        {text: index for index, (text, _, _) in enumerate(pieces)},
        list(derive_merges(ranks)),
        unk_token=pieces[unknown][0],
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def _build_normalizer(fields: Mapping[int, Any], defined: Sequence[str]) -> normalizers.Normalizer:
    """Build the normalizer from the fields of a NormalizerSpec message.

    `defined` contains the user-defined symbols; the normalizer does not change them.
    """
    steps: list[normalizers.Normalizer] = []
    if fields.get(CHARSMAP):
        # The table begins with the size of its trie, for which the library allocates memory.
        (size,) = struct.unpack_from("<I", fields[CHARSMAP])
        if size > len(fields[CHARSMAP]):
            raise TokenizerError("its table of characters ends too early.")
        steps.append(normalizers.Precompiled(fields[CHARSMAP]))
    if fields.get(REMOVE_EXTRA_WHITESPACES, True):
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(Regex(r"\A | \z"), ""))
    if fields.get(ADD_DUMMY_PREFIX, True):
        # User-defined symbols are normalized, too, one by one, and must not be changed.
        symbols = "|".join(re.escape(text) for text in defined)
        unless = rf"(?!(?:{symbols})\z)" if symbols else ""
        steps.append(normalizers.Replace(Regex(rf"\A{unless}(?=(?m:.))"), SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _read_model(data: bytes) -> tuple[list[Piece], dict[int, Any], dict[int, Any]]:
    """Parse the bytes of a `.model` file. Returns its pieces, trainer fields and normalizer fields.

    The fields are dictionaries from field numbers to values. If `data` is not a sentencepiece
    model, the exception may be of any type.
    """
    pieces: list[Piece] = []
    parts: dict[int, dict[int, Any]] = {TRAINER: {}, NORMALIZER: {}}
    for number, value in _read_fields(data):
        if number == PIECES:
            fields = dict(_read_fields(value))
            (score,) = struct.unpack("<f", fields.get(SCORE, b"\0\0\0\0"))
            pieces.append((fields.get(TEXT, b"").decode(), score, fields.get(TYPE, NORMAL)))
        elif number in parts:  # the other fields are self-test data and extensions
            parts[number] = dict(_read_fields(value))
    if not pieces:
        raise ValueError("it contains no pieces")
    return pieces, parts[TRAINER], parts[NORMALIZER]


def _read_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Parse a protocol buffer message. Yields pairs (field number, value).

    The value of a varint field is an integer. The value of any other field is bytes.

    Raises ValueError if the message is invalid.
    """
    offset = 0
    while offset < len(data):
        key, offset = _read_varint(data, offset)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, offset = _read_varint(data, offset)
            yield number, value
            continue
        if wire == 2:
            length, offset = _read_varint(data, offset)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} is unknown")
        if offset + length > len(data):
            raise ValueError("it ends too early")
        yield number, data[offset : offset + length]
        offset += length


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Read a variable-length integer at an offset. Returns its value and the offset after it."""
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
