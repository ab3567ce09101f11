"""Tokenizer classes of XLM-RoBERTa, CamemBERT and MPNet, whose files lack some of their rules."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from trivium.errors import TokenizerError
from trivium.text.roles import to_added_tokens

_ROLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
CLASS_ROLES: Mapping[str, Mapping[str, str]] = {
    "CamembertTokenizer": _ROLES,
    "MPNetTokenizer": {**_ROLES, "unk_token": "[UNK]"},
    "XLMRobertaTokenizer": _ROLES,
}
"""Tokenizer class -> its special tokens, for roles that the options leave out."""
FAIRSEQ_CLASSES = ("CamembertTokenizer", "XLMRobertaTokenizer")
"""Classes whose ids are those of fairseq instead of those of the SentencePiece file."""


def build_fairseq_tokenizer(
    pieces: tokenizers.Tokenizer, kind: str, options: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return the tokenizer of a class in `FAIRSEQ_CLASSES` for a SentencePiece file.

    fairseq puts its own special tokens before the pieces and `<mask>` after the pieces.

    Args:
        pieces: the tokenizer of the SentencePiece file.
        kind: the tokenizer class.
        options: the options in `tokenizer_config.json`.

    Raises TokenizerError if the SentencePiece model is not a Unigram model.
    """
    if not isinstance(pieces.model, models.Unigram):
        raise TokenizerError(f"{kind} needs a Unigram model, and the SentencePiece file has none.")
    names = _special_tokens(kind, options)
    bos, pad, eos, unk = (names[f"{role}_token"] for role in ("bos", "pad", "eos", "unk"))
    vocabulary = [tuple(each) for each in json.loads(pieces.to_str())["model"]["vocab"]]
    if kind == "CamembertTokenizer":
        unused = [("<s>NOTUSED", 0.0), (pad, 0.0), ("</s>NOTUSED", 0.0), (unk, 0.0)]
        whole = [*unused, ("<unk>NOTUSED", -100.0), *vocabulary[1:]]
    else:
        whole = [*((name, 0.0) for name in (bos, pad, eos, unk)), *vocabulary[3:]]
    whole.append((names["mask_token"], 0.0))
    backend = tokenizers.Tokenizer(models.Unigram(whole, unk_id=3, byte_fallback=False))
    _add_specials(backend, names, with_space=kind == "CamembertTokenizer")
    backend.normalizer = pieces.normalizer
    apply_fairseq_rules(backend, kind, options)
    return backend


def apply_fairseq_rules(
    backend: tokenizers.Tokenizer, kind: str, options: Mapping[str, Any]
) -> None:
    """Set the rules that `transformers` 5 gives to a class in `FAIRSEQ_CLASSES`.

    The class keeps the vocabulary of a tokenizer and the table of characters of its normalizer.
    """
    names = _special_tokens(kind, options)
    charsmap = _find_charsmap(json.loads(backend.to_str())["normalizer"])
    steps = [normalizers.Precompiled(charsmap)] if charsmap else []
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if options.get("add_prefix_space", True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    bos, eos = names["bos_token"], names["eos_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=[bos, "$A", eos],
        pair=[bos, "$A", eos, eos, "$B", eos],
        special_tokens=[(name, backend.token_to_id(name)) for name in (bos, eos)],
    )


def build_mpnet_tokenizer(
    wordpieces: tokenizers.Tokenizer, options: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return MPNet's tokenizer for a `vocab.txt`, in which BERT's special tokens are words."""
    backend = tokenizers.Tokenizer(wordpieces.model)
    backend.normalizer = wordpieces.normalizer
    backend.pre_tokenizer = wordpieces.pre_tokenizer
    backend.decoder = wordpieces.decoder
    _add_specials(backend, _special_tokens("MPNetTokenizer", options), with_space=True)
    return backend


def apply_mpnet_template(backend: tokenizers.Tokenizer, options: Mapping[str, Any]) -> None:
    """Make the tokenizer add MPNet's special tokens to texts and pairs, as RoBERTa's does."""
    names = _special_tokens("MPNetTokenizer", options)
    sep, cls = names["sep_token"], names["cls_token"]
    sep_id, cls_id = backend.token_to_id(sep), backend.token_to_id(cls)
    if sep_id is None or cls_id is None:
        raise TokenizerError(f"MPNetTokenizer needs the tokens {cls} and {sep}.")
    backend.post_processor = processors.RobertaProcessing(
        (sep, sep_id), (cls, cls_id), add_prefix_space=False
    )


def _special_tokens(kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return option name -> special token, which is that of the class if the option is unset."""
    names = {}
    for role, default in CLASS_ROLES[kind].items():
        value = options.get(role) or default
        names[role] = str(value["content"] if isinstance(value, Mapping) else value)
    return names


def _add_specials(
    backend: tokenizers.Tokenizer, names: Mapping[str, str], *, with_space: bool
) -> None:
    """Add special tokens that are in the vocabulary.

    `with_space`: the mask token also matches the space before it.
    """
    known = sorted({name for name in names.values() if backend.token_to_id(name) is not None})
    mask = names["mask_token"] if with_space else None
    backend.add_special_tokens(to_added_tokens(known, with_space=mask))


def _find_charsmap(normalizer: Mapping[str, Any] | None) -> bytes | None:
    """Return the table of characters in the JSON of a normalizer, or None if there is none."""
    if normalizer is None:
        return None
    steps: Sequence[Mapping[str, Any]] = normalizer.get("normalizers", [normalizer])
    tables = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    return base64.b64decode(tables[0]) if tables and tables[0] else None
