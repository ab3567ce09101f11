"""The tokenizer of a GGUF file: tokens, types, merges and the pre-tokenizer of llama.cpp.

llama.cpp does not read the pattern of a pre-tokenizer from the file. It has a table of patterns by
name, so a byte-level BPE tokenizer can be written only if its pattern is one of these. Its
WordPiece is that of BERT.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import models

from trivium.errors import TokenizerError
from trivium.interop.settings import Settings
from trivium.text import Tokenizer
from trivium.text.byte_level import PATTERNS
from trivium.text.inputs import SpecialTokenTemplate
from trivium.text.symbols import SPACE, WORDPIECE_PREFIX

# Values of `tokenizer.ggml.token_type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5

# The name of each pattern in llama.cpp, and whether llama.cpp sets `ignore_merges` for this name.
_PRE_TOKENIZERS = {
    PATTERNS["gpt2"]: ("gpt-2", False),
    PATTERNS["llama3"]: ("llama-bpe", True),
    PATTERNS["qwen"]: ("qwen2", False),
}
# Hangul vowels and final consonants, and the vowel signs of Indic scripts.
_LOST_BY_STRIPPING = re.compile("[\u1161-\u11ff\u0903-\u0dff]")
_LLAMA3_WITH_MERGES = "smaug-bpe"  # the pattern of "llama-bpe" without `ignore_merges`
# Measured with xllamacpp 2026.10.11549: 206 of 1,006 texts get other ids, even with the table of
# sentencepiece for NMT + NFKC.
_REASONS = {
    "unigram": ": its Unigram normalizes the zero-width joiner and the spaces at the end of a text "
    "in another way, and chooses another of two segmentations with the same probability"
}
KNOWN = (
    "Tokenizers that can be written: byte-level BPE (kind byte-bpe, as trained here) with the "
    "pattern of GPT-2, LLaMA 3 or Qwen, and for encoders also WordPiece (kind wordpiece) as in "
    "BERT."
)


@dataclass(frozen=True)
class GGUFTokenizer:
    """The tokenizer as llama.cpp reads it.

    Args:
        model: the name of the kind of tokenizer in llama.cpp: "gpt2" or "bert".
        pre: the name of the pre-tokenizer in llama.cpp.
        tokens: the tokens by id, one for each row of the embedding matrix.
        types: the type of each token.
        merges: the merges, each as two tokens separated by a space.
        special_ids: the ids of special tokens by the name of their role in GGUF.
        end_ids: the ids that end a text.
        adds_bos: whether BOS is prepended to a prompt.
        adds_eos: whether EOS is appended to a text, as for embeddings.
        normalizer: the options of BERT's normalizer.
    """

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    special_ids: dict[str, int]
    end_ids: Sequence[int]
    adds_bos: bool
    adds_eos: bool = False
    normalizer: dict[str, bool] = field(default_factory=dict)

    @property
    def added_bos(self) -> str:
        """The token that is prepended to a prompt, or ""."""
        return self.tokens[self.special_ids["bos"]] if self.adds_bos else ""


def convert_tokenizer(
    tokenizer: Tokenizer, settings: Settings, vocab_size: int, *, as_documents: bool | None = None
) -> GGUFTokenizer:
    """Return the tokenizer of a decoder as llama.cpp reads it.

    Rows of the embedding matrix without a token get tokens of type "unused", as in llama.cpp's
    converter. The first three end tokens are those that a GGUF file can name; all end tokens are
    also stop parameters in the Modelfile.

    Args:
        tokenizer: the tokenizer.
        settings: the settings of the model, with its end tokens.
        vocab_size: the number of rows of the embedding matrix.
        as_documents: for a model of embeddings, whether its texts have the tokens around documents
            (BOS and EOS), unless the tokenizer has a template. None for a model that generates: a
            prompt has the tokens before documents.

    Raises:
        TokenizerError: llama.cpp cannot compute the token ids of this tokenizer.
    """
    layout = json.loads(tokenizer.to_json())
    pre = _find_pre_tokenizer(tokenizer, layout)
    ends = _find_end_ids(tokenizer, settings)
    tokens, types = _list_tokens(tokenizer, layout, vocab_size)
    before, after = list(tokenizer.prefix_ids), []
    if as_documents is not None:
        template = SpecialTokenTemplate(tokenizer, as_documents=as_documents)
        before, after = template.before, template.after
        if len(before) > 1 or len(after) > 1:
            raise TokenizerError(
                "llama.cpp adds at most one token before a text and one after it, but this "
                f"tokenizer adds {len(before)} and {len(after)}. {KNOWN}"
            )
        ends = [*dict.fromkeys([*after, *ends])]
    first = [*before, tokenizer.bos_id, ends[0]]
    named = dict(zip(("eos", "eot", "eom"), ends))
    if len(ends) > len(named):
        others = ", ".join(repr(tokens[index]) for index in ends[len(named) :])
        warnings.warn(
            f"a GGUF file names three end tokens; {others} are only in the Modelfile.", stacklevel=2
        )
    roles = {"bos": next(index for index in first if index is not None), "pad": tokenizer.pad_id}
    special_ids = {role: index for role, index in (roles | named).items() if index is not None}
    return GGUFTokenizer(
        "gpt2",
        pre,
        tokens,
        types,
        _list_merges(layout),
        special_ids,
        ends,
        adds_bos=bool(before),
        adds_eos=bool(after),
    )


def convert_encoder_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> GGUFTokenizer:
    """Return a WordPiece or byte-level BPE tokenizer as llama.cpp reads it, for an encoder.

    Raises:
        TokenizerError: llama.cpp cannot compute the token ids of this tokenizer.
    """
    layout = json.loads(tokenizer.to_json())
    is_wordpiece = layout["model"]["type"] == "WordPiece"
    pre = "default" if is_wordpiece else _find_pre_tokenizer(tokenizer, layout)
    ids, template = _encoder_ids(tokenizer), SpecialTokenTemplate(tokenizer)
    if (template.before, template.after) != ([ids.get("bos")], [ids.get("eos")]):
        raise TokenizerError(
            "llama.cpp puts the tokens cls and sep around the texts of an encoder, but this "
            f"tokenizer does not. {KNOWN}"
        )
    if is_wordpiece:
        return _convert_wordpiece(tokenizer, layout, vocab_size)
    tokens, types = _list_tokens(tokenizer, layout, vocab_size)
    return GGUFTokenizer(
        "gpt2",
        pre,
        tokens,
        types,
        _list_merges(layout),
        ids,
        end_ids=(),
        adds_bos=True,
        adds_eos=True,
    )


def _encoder_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of an encoder's special tokens by the name of their role in GGUF."""
    roles = {"bos": "cls", "eos": "sep", **{role: role for role in ("sep", "unk", "pad", "mask")}}
    ids = {name: getattr(tokenizer, f"{role}_id") for name, role in roles.items()}
    return {name: index for name, index in ids.items() if index is not None}


def _list_merges(layout: dict[str, Any]) -> list[str]:
    """Return the merges of a `tokenizer.json`, each as two tokens separated by a space."""
    return [" ".join(pair) for pair in layout["model"]["merges"]]


def _convert_wordpiece(
    tokenizer: Tokenizer, layout: dict[str, Any], vocab_size: int
) -> GGUFTokenizer:
    """Return a WordPiece tokenizer as llama.cpp reads it.

    llama.cpp marks the first piece of a word with U+2581, and not the other pieces with ##.

    Raises TokenizerError if llama.cpp cannot compute the token ids of this tokenizer.
    """
    model, normalizer, split = (layout[part] for part in ("model", "normalizer", "pre_tokenizer"))
    types_of = [None if each is None else each["type"] for each in (normalizer, split)]
    if types_of != ["BertNormalizer", "BertPreTokenizer"]:
        raise TokenizerError(
            f"llama.cpp cannot compute the ids of this {tokenizer.kind} tokenizer in an encoder. "
            f"{KNOWN}"
        )
    prefix = model["continuing_subword_prefix"]
    ids = _encoder_ids(tokenizer)
    for option in ("clean_text", "handle_chinese_chars"):
        if not normalizer[option]:
            raise TokenizerError(f"llama.cpp's WordPiece always has {option}. {KNOWN}")
    if prefix != WORDPIECE_PREFIX or "unk" not in ids:
        raise TokenizerError(
            f"llama.cpp's WordPiece needs a token for unk, and the prefix ##. {KNOWN}"
        )
    tokens, types = _list_tokens(tokenizer, layout, vocab_size)
    marked = [
        token.removeprefix(prefix) if token.startswith(prefix) else SPACE + token
        for token in tokens
    ]
    tokens = [m if kind == NORMAL else t for t, m, kind in zip(tokens, marked, types)]
    lowercase, strips = normalizer["lowercase"], normalizer["strip_accents"]
    strips = lowercase if strips is None else strips
    if strips and _LOST_BY_STRIPPING.search("".join(tokens)):
        warnings.warn(
            "where this tokenizer strips accents, llama.cpp also removes vowels of Korean and of "
            "Indic scripts: texts in these scripts get other ids. tokenizer.normalize = false "
            "trains a tokenizer that keeps accents.",
            stacklevel=3,
        )
    return GGUFTokenizer(
        "bert",
        "default",
        tokens,
        types,
        merges=(),
        special_ids=ids,
        end_ids=(),
        adds_bos=True,
        adds_eos=True,
        normalizer={"lowercase": lowercase, "strip_accents": strips},
    )


def _find_pre_tokenizer(tokenizer: Tokenizer, layout: dict[str, Any]) -> str:
    """Return the name in llama.cpp of the pre-tokenizer of a `tokenizer.json`.

    Raises TokenizerError if llama.cpp cannot compute the token ids of this tokenizer.
    """
    model = layout["model"]
    pattern = _find_pattern(layout["pre_tokenizer"])
    if tokenizer.kind != "byte-bpe" or model["type"] != "BPE" or pattern is None:
        reason = _REASONS.get(tokenizer.kind, "")
        raise TokenizerError(
            f"llama.cpp cannot compute the ids of this {tokenizer.kind} tokenizer{reason}. {KNOWN}"
        )
    if pattern not in _PRE_TOKENIZERS:
        raise TokenizerError(f"llama.cpp does not have the pattern {pattern!r}. {KNOWN}")
    _check_normalizer(layout["normalizer"])
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "byte_fallback"):
        if model.get(option):
            raise TokenizerError(f"llama.cpp's BPE does not have {option} = {model[option]!r}.")
    name, ignores = _PRE_TOKENIZERS[pattern]
    if model.get("ignore_merges", False) != ignores and not _merges_reach_all(tokenizer):
        if not ignores:
            raise TokenizerError(
                f'llama.cpp\'s pre-tokenizer "{name}" needs merges for every token of the '
                "vocabulary, but this tokenizer (ignore_merges) has tokens without merges."
            )
        return _LLAMA3_WITH_MERGES
    return name


def _find_pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """Return the pattern by which a byte-level pre-tokenizer splits, or None if it is another.

    It is either GPT-2's `ByteLevel` or a `Split` by a regular expression before a `ByteLevel`
    that does not split.
    """
    steps = [] if pre_tokenizer is None else pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    types = [step["type"] for step in steps]
    if any(step.get("add_prefix_space") for step in steps):
        return None
    if types == ["ByteLevel"] and steps[0].get("use_regex", True):
        return PATTERNS["gpt2"]
    if types == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        split = steps[0]
        if split["behavior"] in ("Isolated", "isolated") and not split.get("invert"):
            return split["pattern"].get("Regex")
    return None


def _check_normalizer(normalizer: dict[str, Any] | None) -> None:
    """Raise TokenizerError for a normalizer other than NFC, and warn of NFC."""
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    for step in steps:
        if step["type"] != "NFC":
            raise TokenizerError(
                f"llama.cpp's BPE does not have the normalizer {step['type']}. {KNOWN}"
            )
        warnings.warn(
            "llama.cpp does not normalize texts to NFC, as this tokenizer does: give it texts in "
            "NFC (most are), or their ids differ.",
            stacklevel=2,
        )


def _merges_reach_all(tokenizer: Tokenizer) -> bool:
    """Return whether the merges turn every token's text into this token.

    If so, `ignore_merges` changes no ids.
    """
    layout = json.loads(tokenizer.to_json())["model"]
    merges = [tuple(pair) for pair in layout["merges"]]
    model = models.BPE(layout["vocab"], merges)  # type: ignore[arg-type]
    special = tokenizer.special_tokens
    return all(len(model.tokenize(token)) == 1 for token in layout["vocab"] if token not in special)


def _find_end_ids(tokenizer: Tokenizer, settings: Settings) -> list[int]:
    """Return the ids that end a text, the tokenizer's EOS token first.

    Raises TokenizerError if there are none: llama.cpp would end texts at token 11.
    """
    ids = (tokenizer.eos_id, *tokenizer.suffix_ids, *settings.ids("eos_token_id"))
    ends = [*dict.fromkeys(index for index in ids if index is not None)]
    if not ends:
        raise TokenizerError(
            "this tokenizer has no end token, which llama.cpp needs: set eos_token_id in "
            "generation_config.json, or add a special token such as <|endoftext|>."
        )
    return ends


def _list_tokens(
    tokenizer: Tokenizer, layout: dict[str, Any], vocab_size: int
) -> tuple[list[str], list[int]]:
    """Return the tokens by id and their types, one for each of `vocab_size` rows."""
    tokens = [*tokenizer.tokens, *[""] * (vocab_size - tokenizer.vocab_size)]
    types = [NORMAL if token else UNUSED for token in tokens]
    tokens = [token or f"[PAD{index}]" for index, token in enumerate(tokens)]
    for added in layout["added_tokens"]:
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
        # The mask token has no use in a decoder.
        strips = [name for name in ("lstrip", "rstrip", "single_word") if added[name]]
        if strips and added["content"] != tokenizer.roles.get("mask"):
            warnings.warn(
                f"llama.cpp does not apply {strips[0]} of the token {added['content']!r}: texts "
                "that contain its name may have other ids.",
                stacklevel=3,
            )
    return tokens, types
