"""Byte-pair encoding (Sennrich et al. 2016), merge by merge."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import tokenizers

from trivium.errors import TokenizerError

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingMerge:
    """One merge learned: the pair, how often it stood together, and the words after it."""

    step: int
    pair: Pair
    count: int
    token: str
    ties: tuple[Pair, ...]
    words: tuple[tuple[tuple[str, ...], int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class BPETraining:
    """The course of a training: the words as characters, then every merge.

    `words` are (symbols, count) pairs in the order of their first appearance.
    """

    words: tuple[tuple[tuple[str, ...], int], ...]
    alphabet: tuple[str, ...]
    merges: tuple[TrainingMerge, ...]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The alphabet and the merged tokens, in the order they were learned."""
        return tuple(dict.fromkeys([*self.alphabet, *(merge.token for merge in self.merges)]))

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "vocabulary": list(self.vocabulary)}

    def render(self) -> str:
        """The words, and for each merge the pair, its count and the words after it."""
        lines = [f"start: {_words(self.words)}", f"alphabet: {' '.join(self.alphabet)}"]
        for merge in self.merges:
            left, right = merge.pair
            tied = f" (as often: {', '.join(f'{a} {b}' for a, b in merge.ties)})"
            lines.append(
                f"merge {merge.step}: {left} + {right} -> {merge.token}, "
                f"{merge.count} times{tied if merge.ties else ''}"
            )
            lines.append(f"    {_words(merge.words)}")
        lines.append(f"vocabulary ({len(self.vocabulary)}): {' '.join(self.vocabulary)}")
        return "\n".join(lines)


def _words(words: Iterable[tuple[tuple[str, ...], int]]) -> str:
    return " | ".join(
        " ".join(symbols) + (f" x{count}" if count > 1 else "") for symbols, count in words
    )


def train_bpe(
    texts: Sequence[str],
    *,
    merges: int = 10,
    min_frequency: int = 1,
    split: Callable[[str], Sequence[str]] = str.split,
) -> BPETraining:
    """Learn up to `merges` merges from `texts`, cut into words by `split`.

    Among pairs that stand together equally often the one wins whose parts were learned first, the
    alphabet counting in code point order: the rule of the `tokenizers` library.
    """
    counts = Counter(word for text in texts for word in split(text))
    if not counts:
        raise TokenizerError("There is no text to learn merges from.")
    words = {word: tuple(word) for word in counts}
    alphabet = tuple(sorted({symbol for word in counts for symbol in word}))
    place = {symbol: index for index, symbol in enumerate(alphabet)}
    state = _state(words, counts)
    found: list[TrainingMerge] = []
    while len(found) < merges:
        pairs = _pairs(words, counts)
        most = max(pairs.values(), default=0)
        if most < max(1, min_frequency):
            break
        best = sorted(
            (pair for pair in pairs if pairs[pair] == most),
            key=lambda pair: (place[pair[0]], place[pair[1]]),
        )
        token = "".join(best[0])
        place.setdefault(token, len(place))
        words = {word: merge_pair(symbols, best[0]) for word, symbols in words.items()}
        found.append(
            TrainingMerge(
                len(found) + 1, best[0], most, token, tuple(best[1:]), _state(words, counts)
            )
        )
    return BPETraining(words=state, alphabet=alphabet, merges=tuple(found))


def _state(
    words: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]
) -> tuple[tuple[tuple[str, ...], int], ...]:
    return tuple((symbols, counts[word]) for word, symbols in words.items())


def _pairs(words: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]) -> Counter[Pair]:
    found: Counter[Pair] = Counter()
    for word, symbols in words.items():
        for pair in itertools.pairwise(symbols):
            found[pair] += counts[word]
    return found


def merge_pair(symbols: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """Join every occurrence of `pair`, from the left."""
    found: list[str] = []
    place = 0
    while place < len(symbols):
        if tuple(symbols[place : place + 2]) == pair:
            found.append("".join(pair))
            place += 2
        else:
            found.append(symbols[place])
            place += 1
    return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True)
class EncodingMerge:
    """One merge applied: the pair, its rank (0 was learned first) and the symbols after it."""

    pair: Pair
    rank: int
    symbols: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class WordMerges:
    """How one word becomes tokens."""

    word: str
    symbols: tuple[str, ...]
    merges: tuple[EncodingMerge, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The symbols after the last merge."""
        return self.merges[-1].symbols if self.merges else self.symbols


@dataclasses.dataclass(frozen=True, slots=True)
class BPEEncoding:
    """How the words of a text become tokens, merge by merge."""

    text: str
    words: tuple[WordMerges, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens of the text."""
        return tuple(token for word in self.words for token in word.tokens)

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "tokens": list(self.tokens)}

    def render(self) -> str:
        """The symbols of each word and every merge."""
        lines = []
        for word in self.words:
            lines.append(f"{word.word}: {' '.join(word.symbols)}")
            lines.extend(
                f"    {merge.pair[0]} + {merge.pair[1]} (rank {merge.rank}): "
                f"{' '.join(merge.symbols)}"
                for merge in word.merges
            )
        lines.append(f"tokens: {' '.join(self.tokens)}")
        return "\n".join(lines)


def encode_bpe(word: str, ranks: Mapping[Pair, int]) -> WordMerges:
    """Apply the merges to one word: always the pair learned first, its leftmost place first.

    As in the library, one place is joined at a time.
    """
    symbols = tuple(word)
    start = symbols
    found: list[EncodingMerge] = []
    while True:
        pairs = list(itertools.pairwise(symbols))
        known = [place for place, pair in enumerate(pairs) if pair in ranks]
        if not known:
            return WordMerges(word, start, tuple(found))
        place = min(known, key=lambda place: (ranks[pairs[place]], place))
        pair = pairs[place]
        symbols = (*symbols[:place], "".join(pair), *symbols[place + 2 :])
        found.append(EncodingMerge(pair, ranks[pair], symbols))


def explain_bpe_encoding(backend: tokenizers.Tokenizer, text: str) -> BPEEncoding:
    """Encode `text` with a loaded BPE tokenizer (characters or bytes), merge by merge.

    Raises TokenizerError where the model is not BPE. Special tokens and unknown characters are
    shown as they stand in the text.
    """
    model = json.loads(backend.to_str())["model"]
    if model["type"] != "BPE":
        raise TokenizerError(f"Merges exist in BPE tokenizers only; this one is {model['type']}.")
    merges = (
        tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]
    )
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
    whole = model["vocab"] if model.get("ignore_merges") else {}
    words = []
    for word in split_words(backend, text):
        words.append(WordMerges(word, (word,), ()) if word in whole else encode_bpe(word, ranks))
    return BPEEncoding(text, tuple(words))


def split_words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """The words of `text` after the tokenizer's normaliser and pre-tokeniser."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return [text] if text else []
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
