"""sentencepiece `.model` files: a protocol buffer (sentencepiece_model.proto), read as it is."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from trivium.errors import TokenizerError
from trivium.text.byte_level import merges_of_ranks
from trivium.text.symbols import SCORE_DIGITS, SPACE

_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = range(1, 5)


@dataclasses.dataclass(frozen=True, slots=True)
class SentencePiece:
    """One entry of the vocabulary; `score` is a log-probability (Unigram) or minus a rank (BPE)."""

    text: str
    score: float
    type: int


@dataclasses.dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The fields of a `.model` file that decide how it encodes."""

    pieces: tuple[SentencePiece, ...]
    model_type: int
    byte_fallback: bool
    treat_whitespace_as_suffix: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    def texts(self, *types: int) -> list[str]:
        """The pieces of some types."""
        return [piece.text for piece in self.pieces if piece.type in types]

    @property
    def unknown_id(self) -> int:
        """The id of the unknown piece."""
        return next((at for at, piece in enumerate(self.pieces) if piece.type == _UNKNOWN), 0)


def load_sentencepiece(file: Path, config: Mapping[str, object]) -> tokenizers.Tokenizer:
    """Read a `.model` file; `config` may have `add_bos_token` and `add_eos_token`."""
    try:
        model = read_model(file.read_bytes())
    except Exception as error:  # of whatever kind: the bytes are no protocol buffer
        raise TokenizerError(f"{file} is no sentencepiece model: {error}.") from error
    if model.model_type not in (_UNIGRAM, _BPE) or model.treat_whitespace_as_suffix:
        raise TokenizerError(
            f"{file} is a sentencepiece model of words, characters or with spaces as suffixes; "
            "only BPE and Unigram with spaces as prefixes can be read."
        )
    backend = tokenizers.Tokenizer(_model(model))
    defined = model.texts(_USER_DEFINED)
    # A piece with a space inside crosses words, which then cannot be encoded one by one.
    crosses_words = any(SPACE in text[1:] for text in model.texts(_NORMAL))
    backend.normalizer = _normalizer(model, defined)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="never", split=not crosses_words
    )
    backend.decoder = _decoder(model)
    backend.add_tokens([AddedToken(text, normalized=True, special=False) for text in defined])
    backend.add_special_tokens(
        [
            AddedToken(text, normalized=False, special=True)
            for text in model.texts(_UNKNOWN, _CONTROL)
        ]
    )
    _add_template(backend, model, config)
    return backend


def _model(model: SentencePieceModel) -> models.Model:
    unknown = model.unknown_id
    if model.model_type == _UNIGRAM:
        return models.Unigram(
            [(piece.text, round(piece.score, SCORE_DIGITS)) for piece in model.pieces],
            unk_id=unknown,
            byte_fallback=model.byte_fallback,
        )
    ranks = {piece.text: -piece.score for piece in model.pieces if piece.type == _NORMAL}
    return models.BPE(
        {piece.text: index for index, piece in enumerate(model.pieces)},
        list(merges_of_ranks(ranks)),
        unk_token=model.pieces[unknown].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _normalizer(model: SentencePieceModel, defined: Sequence[str]) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(Regex(r"\A | \z"), ""))
    if model.add_dummy_prefix:
        # Defined symbols are normalized too, alone, and must stay as they are.
        symbols = "|".join(re.escape(text) for text in defined)
        unless = rf"(?!(?:{symbols})\z)" if symbols else ""
        steps.append(normalizers.Replace(Regex(rf"\A{unless}(?=(?m:.))"), SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _decoder(model: SentencePieceModel) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if model.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _add_template(
    backend: tokenizers.Tokenizer, model: SentencePieceModel, config: Mapping[str, object]
) -> None:
    """`<s>` before and `</s>` after a text where the configuration beside the file says so."""
    control = model.texts(_CONTROL)
    first = ["<s>"] if config.get("add_bos_token") and "<s>" in control else []
    last = ["</s>"] if config.get("add_eos_token") and "</s>" in control else []
    if first or last:
        second = [f"{token}:1" for token in (*first, "$B", *last)]
        backend.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *second],
            special_tokens=[(token, backend.token_to_id(token)) for token in first + last],
        )


def read_model(data: bytes) -> SentencePieceModel:
    """Parse a ModelProto. Raises various exceptions: `data` is none."""
    pieces: list[SentencePiece] = []
    parts: dict[int, dict[int, Any]] = {}
    for number, value in _fields(data):
        if number <= 3:  # others are self-test data and extensions
            parts[number] = fields = dict(_fields(value))
            if number == 1:
                (score,) = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))
                text = fields.get(1, b"").decode("utf-8")
                pieces.append(SentencePiece(text, score, fields.get(3, _NORMAL)))
    trainer, normalizer = parts.get(2, {}), parts.get(3, {})
    if not pieces:
        raise ValueError("it holds no pieces")
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=trainer.get(3, _UNIGRAM),
        byte_fallback=bool(trainer.get(35, False)),
        treat_whitespace_as_suffix=bool(trainer.get(24, False)),
        charsmap=normalizer.get(2, b""),
        add_dummy_prefix=bool(normalizer.get(3, True)),
        remove_extra_whitespaces=bool(normalizer.get(4, True)),
    )


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
