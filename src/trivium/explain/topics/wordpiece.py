"""WordPiece in BERT's form (Devlin et al. 2018): greedy longest match first."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path

from trivium.explain.page import Bilingual, Formula, Page, Table
from trivium.explain.tokens import Word, encoding_page, load_tokenizer
from trivium.text.symbols import WORDPIECE_PREFIX

SUMMARY = Bilingual("WordPiece: the longest match first", "WordPiece：最长匹配优先")

_NOTE = Bilingual(
    "From the left the longest token of the vocabulary is taken; inside a word tokens begin with "
    "##. Where nothing matches the whole word is unknown. Training of the original takes the pair "
    "with the greatest ratio below, the libraries of today (this one, too) the most frequent pair, "
    "as BPE does.",
    "从左到右，每次取词表中能匹配的最长词元；词内部的词元以 ## 开头。"
    "若某处无法匹配，整个词记为未知词元。"
    "训练时，原始算法选下式比值最大的一对；如今的库（包括这里）与 BPE 一样，选出现次数最多的一对。",
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
    words = words or ["playing", "unaffable", "player"]
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer, ("wordpiece",))
        model = loaded.model
        names = ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word")
        unknown, prefix, most = (model[name] for name in names)
        return encoding_page(
            loaded, words, lambda word: match(word, model["vocab"], unknown, prefix, most)
        )
    tokens = vocab.split()
    matches = [match(word, tokens) for text in words for word in text.split()]
    return Page(
        Bilingual("WordPiece takes the longest match", "WordPiece 最长匹配"),
        [
            Bilingual(f"vocabulary: {vocab}", f"词表：{vocab}"),
            *(part for part, _ in matches),
            _NOTE,
            Formula("score(a, b) = count(ab) / (count(a) * count(b))"),
        ],
        {"vocabulary": tokens, "words": [facts for _, facts in matches]},
    )


def match(
    word: str,
    vocabulary: Collection[str],
    unknown: str = "[UNK]",
    prefix: str = WORDPIECE_PREFIX,
    max_characters: int = 100,
) -> Word:
    """Take the longest token that starts the rest of the word, until nothing is left.

    Where no token matches, and in words longer than `max_characters`, the whole word is unknown.
    """
    tokens, steps, rest = [], [], word
    while rest and len(word) <= max_characters:
        starts = [(prefix if tokens else "") + rest[:end] for end in range(len(rest), 0, -1)]
        missed = list(itertools.takewhile(lambda token: token not in vocabulary, starts))
        token = starts[len(missed)] if len(missed) < len(starts) else None
        steps.append({"rest": rest, "missed": missed, "token": token})
        if token is None:
            break
        tokens.append(token)
        rest = rest[len(rest) - len(missed) :]
    tokens = [unknown] if rest else tokens
    columns = [
        Bilingual("rest of the word", "剩余部分"),
        Bilingual("token", "词元"),
        Bilingual("longer ones, not in the vocabulary", "更长而不在词表中的"),
    ]
    none = Bilingual("no match", "无法匹配")
    rows = [[one["rest"], one["token"] or none, " ".join(one["missed"])] for one in steps]
    facts = {"word": word, "tokens": tokens, "steps": steps}
    return Table(columns, rows, f"{word} -> {' '.join(tokens)}"), facts
