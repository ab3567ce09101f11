"""Marian's published tokenizers: `source.spm`, `target.spm`, `vocab.json`, `target_vocab.json`.

A SentencePiece file splits the text into pieces, and a vocabulary file numbers the pieces. Source
and target share `vocab.json`, unless there is a `target_vocab.json`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from trivium.errors import SpecError, TokenizerError
from trivium.files import write_json
from trivium.interop.hf_config import read_object_if_exists
from trivium.text import Tokenizer
from trivium.text.roles import add_template
from trivium.text.sentencepiece_file import load_sentencepiece
from trivium.text.sentencepiece_writer import sentencepiece_problem, write_sentencepiece

SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
TOKENIZER_CLASS = "MarianTokenizer"
_ROLES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
# The score of each character of a token that is in the vocabulary but not in the SentencePiece
# file. Such a token is used only where the file has no piece for a character.
_OUTSIDE = -1e6


def is_marian_folder(folder: Path) -> bool:
    """Return whether a folder has the tokenizer files of Marian, and no `tokenizer.json`."""
    names = (SOURCE_PIECES, TARGET_PIECES, VOCABULARY)
    return (
        all((folder / name).is_file() for name in names)
        and not (folder / "tokenizer.json").exists()
    )


def read_marian_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of sources and targets, with the ids of the vocabulary files.

    Punctuation is encoded as it is. (`transformers` rewrites quotes and dashes first where the
    library sacremoses is installed.) A run of characters that the SentencePiece file does not know
    is one unknown token, as in SentencePiece.

    Raises:
        TokenizerError: a file that is damaged, or a vocabulary without `</s>`, `<unk>` or `<pad>`.
    """
    shared = _read_vocabulary(folder / VOCABULARY)
    own = folder / TARGET_VOCABULARY
    target = _read_vocabulary(own) if own.is_file() else shared
    return (
        _build(folder / SOURCE_PIECES, folder / VOCABULARY, shared),
        _build(
            folder / TARGET_PIECES, own if target is not shared else folder / VOCABULARY, target
        ),
    )


def marian_problem(source: Tokenizer, target: Tokenizer) -> str:
    """Return why two tokenizers cannot be written as those of Marian, or "" if they can."""
    for side, tokenizer in (("source", source), ("target", target)):
        missing = [token for token in _ROLES.values() if tokenizer.token_to_id(token) is None]
        problem = f"it has no {missing[0]}" if missing else sentencepiece_problem(tokenizer.backend)
        if problem:
            return f"the {side} tokenizer is not a SentencePiece model of Marian: {problem}"
    return ""


def write_marian_tokenizers(
    folder: Path, source: Tokenizer, target: Tokenizer, options: Mapping[str, Any]
) -> None:
    """Write two tokenizers as the files that `MarianTokenizer` of `transformers` reads.

    `options` are further options for `tokenizer_config.json`.

    Raises SpecError if one of them cannot be written as a SentencePiece file.
    """
    if problem := marian_problem(source, target):
        raise SpecError(
            "this model with a source tokenizer of its own cannot be exported: only Marian's two "
            f"SentencePiece files can hold two tokenizers, but {problem}. Train a model without "
            "model.separate_vocabularies."
        )
    vocabularies = [one.backend.get_vocab(with_added_tokens=True) for one in (source, target)]
    separate = vocabularies[0] != vocabularies[1]
    for name, tokenizer in ((SOURCE_PIECES, source), (TARGET_PIECES, target)):
        write_sentencepiece(folder / name, tokenizer.backend, outside=_OUTSIDE)
    write_json(folder / VOCABULARY, dict(sorted(vocabularies[0].items(), key=lambda one: one[1])))
    if separate:
        ordered = sorted(vocabularies[1].items(), key=lambda one: one[1])
        write_json(folder / TARGET_VOCABULARY, dict(ordered))
    roles = {f"{role}_token": token for role, token in _ROLES.items()}
    kind = {"tokenizer_class": TOKENIZER_CLASS, "separate_vocabs": separate}
    write_json(folder / "tokenizer_config.json", {**kind, **roles, **options})


def _read_vocabulary(file: Path) -> dict[str, int]:
    """Return the ids in a vocabulary file by token, in the order of the ids."""
    vocabulary = read_object_if_exists(file)
    missing = [token for token in _ROLES.values() if token not in vocabulary]
    if missing or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        problem = f"it has no {', '.join(missing)}" if missing else "ids are left out"
        raise TokenizerError(f"{file} is not a vocabulary of Marian: {problem}.")
    return dict(sorted(vocabulary.items(), key=lambda one: one[1]))


def _build(pieces: Path, file: Path, vocabulary: Mapping[str, int]) -> Tokenizer:
    """Return the tokenizer of a SentencePiece file with the ids of a vocabulary file."""
    backend = load_sentencepiece(pieces, {})
    if not isinstance(backend.model, models.Unigram):
        raise TokenizerError(f"{pieces}: Marian's tokenizers are Unigram models; this one is BPE.")
    content = json.loads(backend.to_str())
    added = backend.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    scores = {text: score for text, score in content["model"]["vocab"] if text not in special}
    if missing := scores.keys() - vocabulary.keys():
        warnings.warn(
            f"{file} lacks {len(missing):,} of {len(scores):,} pieces of {pieces.name}, such as "
            f"{min(missing)!r}: they are split into smaller pieces.",
            stacklevel=2,
        )
    content["model"] |= {
        "vocab": [[text, scores.get(text, _OUTSIDE * len(text))] for text in vocabulary],
        "unk_id": vocabulary[_ROLES["unk"]],
    }
    content["added_tokens"] = []
    result = tokenizers.Tokenizer.from_str(json.dumps(content))
    languages = [one for one in vocabulary if one.startswith(">>") and one.endswith("<<")]
    result.add_tokens([one for one in added if not one.special and one.content in vocabulary])
    result.add_special_tokens([*_ROLES.values(), *languages])
    add_template(result, [], [_ROLES["eos"]])
    return Tokenizer(result, _ROLES)
