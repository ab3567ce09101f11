"""WordPiece in BERT's form (Devlin et al. 2018): greedy longest match first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers.normalizers import BertNormalizer

from trivium.explain.page import Bilingual, Formula, Page, Table
from trivium.explain.tokens import Word, encoding_page, load_tokenizer, texts_or_default
from trivium.text.symbols import WORDPIECE_PREFIX

SUMMARY = Bilingual("WordPiece: the longest match first", "WordPiece：最长匹配优先")

_BERT = {
    "unk_token": "[UNK]",
    "continuing_subword_prefix": WORDPIECE_PREFIX,
    "max_input_chars_per_word": 100,
}
_COLUMNS = [
    Bilingual("rest of the word", "剩余部分"),
    Bilingual("token", "词元"),
    Bilingual("longer ones, not in the vocabulary", "更长而不在词表中的"),
]
_NONE = Bilingual("no match", "无法匹配")
_NOTE = Bilingual(
    "Inside a word tokens begin with ##. Where nothing matches the whole word is unknown. Training "
    "of the original merges the pair with the greatest score below, the libraries of today (here, "
    "too) the most frequent pair, as BPE does.",
    "词内部的词元以 ## 开头；若某处无法匹配，整个词记为未知词元。"
    "训练时，原始算法合并下式得分最高的一对；"
    "如今的库（包括这里）与 BPE 一样，合并出现次数最多的一对。",
)


def explain(
    words: list[str] | None = None,
    *,
    vocab: str = "play ##ing ##ed un ##aff ##able",
    tokenizer: Path | None = None,
) -> Page:
    """Match words with a vocabulary, step by step.

    Args:
        words: Words or texts. Default: playing unaffable player.
        vocab: Tokens, separated by spaces.
        tokenizer: Show how this one encodes the texts; a file, or the folder of a run.
    """
    words = texts_or_default(words, ["playing", "unaffable", "player"])
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer, ("wordpiece",))
        return encoding_page(loaded, words, lambda word: match(word, loaded.model))
    model = _BERT | {"vocab": vocab.split()}
    spaced = BertNormalizer(lowercase=False).normalize_str(" ".join(words))  # around Chinese
    matches = [match(word, model) for word in spaced.split()]
    parts = [part for part, _ in matches]
    formula = Formula("score(a, b) = count(ab) / (count(a) * count(b))")
    return Page(
        Bilingual("WordPiece takes the longest match", "WordPiece 最长匹配"),
        [Bilingual(f"vocabulary: {vocab}", f"词表：{vocab}"), *parts, _NOTE, formula],
        {"words": [facts for _, facts in matches]},
    )


def match(word: str, model: Mapping[str, Any]) -> Word:
    """Take the longest token that starts the rest of the word, until nothing is left.

    Where no token matches, and in words that are too long, the whole word is unknown.
    """
    tokens, rows, rest = [], [], word
    while rest and len(word) <= model["max_input_chars_per_word"]:
        prefix = model["continuing_subword_prefix"] if tokens else ""
        starts = [prefix + rest[:end] for end in range(len(rest), 0, -1)]
        missed = list(itertools.takewhile(lambda token: token not in model["vocab"], starts))
        if len(missed) == len(rest):
            rows.append([rest, _NONE, " ".join(missed)])
            break
        tokens.append(starts[len(missed)])
        rows.append([rest, tokens[-1], " ".join(missed)])
        rest = rest[len(rest) - len(missed) :]
    tokens = [model["unk_token"]] if rest else tokens
    return Table(_COLUMNS, rows, f"{word} -> {' '.join(tokens)}"), {"word": word, "tokens": tokens}
