"""Explanation of WordPiece as in BERT (Devlin et al. 2018): greedy longest match first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers.normalizers import BertNormalizer

from trivium.explain.page import Formula, Page, Table, get_text
from trivium.explain.tokens import Word, build_encoding_page, choose_texts, load_tokenizer
from trivium.text.symbols import WORDPIECE_PREFIX

_BERT = {
    "unk_token": "[UNK]",
    "continuing_subword_prefix": WORDPIECE_PREFIX,
    "max_input_chars_per_word": 100,
}
_COLUMNS = [
    get_text("wordpiece.rest_word"),
    get_text("shared.token"),
    get_text("wordpiece.longer_ones"),
]
_NONE = get_text("wordpiece.no_match")
_NOTE = get_text("wordpiece.note")


def explain(
    words: list[str] | None = None,
    *,
    vocab: str = "play ##ing ##ed un ##aff ##able",
    tokenizer: Path | None = None,
) -> Page:
    """Tokenize words with a vocabulary by greedy longest match first, step by step.

    Args:
        words: Words or texts. Default: "playing unaffable player".
        vocab: The tokens of the vocabulary, separated by spaces.
        tokenizer: A tokenizer file or run folder; show how this tokenizer encodes the texts
            instead.
    """
    words = choose_texts(words, ["playing", "unaffable", "player"])
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer, ("wordpiece",))
        return build_encoding_page(
            loaded, words, lambda word: match_longest_first(word, loaded.model)
        )
    model = _BERT | {"vocab": vocab.split()}
    spaced = BertNormalizer(lowercase=False).normalize_str(" ".join(words))  # around Chinese
    matches = [match_longest_first(word, model) for word in spaced.split()]
    parts = [part for part, _ in matches]
    formula = Formula("score(a, b) = count(ab) / (count(a) * count(b))")
    return Page(
        get_text("wordpiece.wordpiece_takes_longest"),
        [get_text("wordpiece.vocabulary", vocab=vocab), *parts, _NOTE, formula],
        {"words": [data for _, data in matches]},
    )


def match_longest_first(word: str, model: Mapping[str, Any]) -> Word:
    """Tokenize a word by greedy longest match first. Returns the steps as a table and as data.

    If the word is too long, or if a part of it matches no token, the whole word becomes an unknown
    token. `model` contains the vocabulary and settings of a WordPiece tokenizer.
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
