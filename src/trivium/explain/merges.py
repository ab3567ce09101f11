"""Learning and applying merges of byte-pair encoding (Sennrich et al. 2016).

The initial symbols are characters. In a byte-level vocabulary, each character represents a byte.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trivium.explain.page import Page, Part, Table, Token, TokenRow, get_text
from trivium.explain.tokens import Word, build_encoding_page, load_tokenizer
from trivium.text.symbols import make_readable, symbols_to_bytes

Pair: TypeAlias = tuple[str, str]
Ties: TypeAlias = Literal["first", "frequent-then-bytes", "lowest-ids"]
_SHOWN_WORDS, _SHOWN_TIES = 6, 2
_MERGE, _COUNT = get_text("page.merge"), get_text("shared.count")
_TIES = get_text("page.as_frequent")
_ENCODING = [_MERGE, get_text("page.rank"), get_text("page.symbols")]
_NOTE = get_text("page.merges_note")


def apply_merges(symbols: Sequence[str], ranks: Mapping[Pair, int]) -> list[tuple[Pair, list[str]]]:
    """Apply learned merges to the symbols of a word. Returns each merge and the symbols after it.

    `ranks` contains the rank of each merge. In each step, the adjacent pair with the lowest rank is
    merged, at its leftmost position.

    >>> apply_merges("theme", {("h", "e"): 0, ("t", "he"): 1})[-1]
    (('t', 'he'), ['the', 'm', 'e'])
    """
    symbols, steps = list(symbols), []
    while pairs := [pair for pair in itertools.pairwise(symbols) if pair in ranks]:
        pair = min(pairs, key=lambda pair: ranks[pair])
        at = list(itertools.pairwise(symbols)).index(pair)
        symbols = [*symbols[:at], "".join(pair), *symbols[at + 2 :]]
        steps.append((pair, symbols))
    return steps


def learn_merges(
    word_counts: Mapping[str, int],
    num_merges: int,
    ties: Ties,
    to_bytes: Callable[[str], bytes | None],
) -> list[dict[str, Any]]:
    """Learn BPE merges. Each step merges the most frequent pair of adjacent symbols.

    Args:
        word_counts: the count of each word.
        num_merges: the maximum number of merges.
        ties: which of several equally frequent pairs is merged: the pair seen first, the greatest
            pair in byte order, or the pair with the lowest token ids.
        to_bytes: converts a symbol to bytes, for comparing pairs in byte order.

    Returns:
        A dict for each step, with the merged `pair`, its `count`, the other equally frequent pairs
        (`ties`), and the symbols of all `words` after the merge.
    """
    split = {word: list(word) for word in word_counts}
    ids = {symbol: index for index, symbol in enumerate(sorted(set("".join(word_counts))))}
    steps = []
    while len(steps) < num_merges:
        counts: Counter[Pair] = Counter()
        for word, times in word_counts.items():
            for pair in itertools.pairwise(split[word]):
                counts[pair] += times
        if not counts:
            break
        most = max(counts.values())
        tied = [pair for pair, count in counts.items() if count == most]
        if ties == "frequent-then-bytes":
            tied.sort(key=lambda pair: [to_bytes(symbol) or b"" for symbol in pair], reverse=True)
        elif ties == "lowest-ids":
            tied.sort(key=lambda pair: [ids[symbol] for symbol in pair])
        pair, *others = tied
        ids.setdefault("".join(pair), len(ids))
        for word, symbols in split.items():
            if merged := apply_merges(symbols, {pair: 0}):
                split[word] = merged[-1][1]
        steps.append({"pair": pair, "count": most, "ties": others, "words": dict(split)})
    return steps


def build_training_page(
    words: Mapping[str, int], merges: int, ties: Ties, *, byte_level: bool, notes: Sequence[Part]
) -> Page:
    """Build a page that shows how BPE merges are learned from words and their counts.

    Args:
        words: the count of each word.
        merges: the maximum number of merges.
        ties: which of several equally frequent pairs is merged (see `learn_merges`).
        byte_level: whether the symbols represent bytes. The page shows them as text.
        notes: parts to append to the page.
    """
    show, to_bytes = (_to_readable_text, symbols_to_bytes) if byte_level else (str, str.encode)
    steps = learn_merges(words, merges, ties, to_bytes)
    shown = list(words)[:_SHOWN_WORDS]

    def join(symbols: Sequence[str], between: str = " ") -> str:
        """Join symbols into one readable text, with `between` as the separator."""
        return between.join(map(show, symbols))

    rows: list[list[Any]] = [["", "", "", *(join(word) for word in shown)]]
    for step in steps:
        tied = [join(pair, " + ") for pair in step["ties"]]
        as_frequent = ", ".join(tied[:_SHOWN_TIES]) + (", ..." if tied[_SHOWN_TIES:] else "")
        merge = f"{join(step['pair'], ' + ')} -> {show(''.join(step['pair']))}"
        words_now = (join(step["words"][word]) for word in shown)
        rows.append([merge, step["count"], as_frequent, *words_now])
    names = [f"{show(word)} x{words[word]}" for word in shown]
    alphabet = sorted(set("".join(words)))
    vocabulary = list(dict.fromkeys([*alphabet, *("".join(step["pair"]) for step in steps)]))
    tokens = [Token(show(t), tone="" if t in alphabet else "changed") for t in vocabulary]
    caption = get_text("page.vocabulary_size", alphabet=len(alphabet), size=len(vocabulary))
    return Page(
        get_text("page.learning_merges"),
        [Table([_MERGE, _COUNT, _TIES, *names], rows), TokenRow(tokens, caption), _NOTE, *notes],
        {"words": dict(words), "merges": steps, "vocabulary": vocabulary},
    )


def build_merging_page(path: Path, texts: Sequence[str]) -> Page:
    """Build a page that shows how a trained BPE tokenizer merges each word of the texts."""
    tokenizer = load_tokenizer(path, ("bpe", "byte-bpe"))
    show = _to_readable_text if tokenizer.kind == "byte-bpe" else str
    ranks = {(left, right): rank for rank, (left, right) in enumerate(tokenizer.model["merges"])}
    whole_words = tokenizer.model["vocab"] if tokenizer.model.get("ignore_merges") else {}

    def explain_word(word: str) -> Word:
        """Return the merges applied to a word, as a table and as data."""
        symbols = [word] if word in whole_words else list(word)
        rows: list[list[Any]] = [["", "", " ".join(map(show, symbols))]]
        for pair, merged in apply_merges(symbols, ranks):
            symbols = merged
            rows.append([" + ".join(map(show, pair)), ranks[pair], " ".join(map(show, symbols))])
        data = {"word": show(word), "tokens": [*map(show, symbols)], "merges": rows[1:]}
        return Table(_ENCODING, rows, show(word)), data

    return build_encoding_page(tokenizer, texts, explain_word)


def _to_readable_text(symbols: str) -> str:
    r"""Convert byte-level symbols to text. Incomplete characters become escapes such as \xe4."""
    data = symbols_to_bytes(symbols)
    return symbols if data is None else make_readable(data)
