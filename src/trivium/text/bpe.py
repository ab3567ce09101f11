"""Byte-pair encoding on characters (Sennrich et al. 2016), and how it learns and applies merges."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from trivium.errors import TokenizerError
from trivium.text.explanation import Explanation, WordExplanation
from trivium.text.roles import TEXT_SPECIALS
from trivium.text.tokenizer import SpecialTokens, Tokenizer
from trivium.text.trainers import CharacterTokenizerConfig, run_trainer, unknown_token

Pair = tuple[str, str]
WordCounts = tuple[tuple[tuple[str, ...], int], ...]


class BPE(CharacterTokenizerConfig):
    """Merges of characters. A space is U+2581 before the word; punctuation and line ends are apart.

    Source: Sennrich et al. 2016; the space symbol is sentencepiece's.
    """

    kind: Literal["bpe"] = "bpe"
    component_types: ClassVar[tuple[str, ...]] = ("BPE",)
    special_tokens: SpecialTokens = TEXT_SPECIALS
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to be merged")

    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Learn merges."""
        backend = tokenizers.Tokenizer(models.BPE(unk_token=unknown_token(self), fuse_unk=True))
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(prepend_scheme="first"),
                pre_tokenizers.Split(Regex(r"[\r\n]+"), behavior="isolated"),
                pre_tokenizers.Punctuation(),
            ]
        )
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        texts, _ = self.cover(texts, backend.normalizer)
        run_trainer(self, backend, trainers.BpeTrainer, texts, min_frequency=self.min_frequency)
        return backend

    @classmethod
    def word_explainer(cls, tokenizer: Tokenizer) -> Callable[[str], WordExplanation]:
        """Applies merges one by one."""
        return merge_explainer(tokenizer, str)


def merge_explainer(
    tokenizer: Tokenizer, display: Callable[[str], str]
) -> Callable[[str], WordExplanation]:
    """Explains words by the merges of a BPE model; `display` makes its symbols readable."""
    model = tokenizer.model
    ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
    whole_words = model["vocab"] if model.get("ignore_merges") else {}

    def explain(word: str) -> WordExplanation:
        if word in whole_words:
            return WordExplanation(display(word), (display(word),))
        return encode_bpe(word, ranks, display)

    return explain


@dataclasses.dataclass(frozen=True, slots=True)
class MergeStep:
    """One merge applied: the pair, its rank (0 was learned first) and the symbols after it."""

    pair: Pair
    rank: int
    symbols: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class WordMerges(WordExplanation):
    """The symbols of a word and the merges applied to them."""

    symbols: tuple[str, ...]
    merges: tuple[MergeStep, ...]

    def render(self) -> str:
        """The symbols and one line per merge."""
        lines = [f"{self.word}: {' '.join(self.symbols)}"]
        lines += [
            f"    {step.pair[0]} + {step.pair[1]} (rank {step.rank}): {' '.join(step.symbols)}"
            for step in self.merges
        ]
        return "\n".join(lines)


def encode_bpe(
    word: str, ranks: Mapping[Pair, int], display: Callable[[str], str] = str
) -> WordMerges:
    """Apply merges to one word: always the pair learned first, its leftmost occurrence first.

    >>> encode_bpe("theme", {("h", "e"): 0, ("t", "he"): 1}).tokens
    ('the', 'm', 'e')
    """
    symbols = list(word)
    steps: list[MergeStep] = []
    while True:
        pairs = list(itertools.pairwise(symbols))
        mergeable = [at for at, pair in enumerate(pairs) if pair in ranks]
        if not mergeable:
            break
        at = min(mergeable, key=lambda at: (ranks[pairs[at]], at))
        symbols[at : at + 2] = ["".join(pairs[at])]
        left, right = map(display, pairs[at])
        steps.append(MergeStep((left, right), ranks[pairs[at]], tuple(map(display, symbols))))
    start, end = (tuple(map(display, part)) for part in (word, symbols))
    return WordMerges(display(word), end, start, tuple(steps))


@dataclasses.dataclass(frozen=True, slots=True)
class LearnedMerge:
    """One merge learned: the pair, how often it occurred, pairs as frequent, the words after it."""

    pair: Pair
    count: int
    ties: tuple[Pair, ...]
    words: WordCounts


@dataclasses.dataclass(frozen=True)
class BPETraining(Explanation):
    """A training: words as characters with their counts, the alphabet, then every merge.

    The vocabulary is the alphabet and the merged tokens, in the order they were learned.
    """

    words: WordCounts
    alphabet: tuple[str, ...]
    merges: tuple[LearnedMerge, ...]
    vocabulary: tuple[str, ...]

    def render(self) -> str:
        """The words, and for each merge the pair, its count and the words after it."""
        lines = [f"start: {_words(self.words)}", f"alphabet: {' '.join(self.alphabet)}"]
        for step, merge in enumerate(self.merges, start=1):
            left, right = merge.pair
            ties = ", ".join(f"{a} {b}" for a, b in merge.ties)
            lines.append(
                f"merge {step}: {left} + {right} -> {left}{right}, {merge.count} times"
                + (f" (as frequent: {ties})" if ties else "")
            )
            lines.append(f"    {_words(merge.words)}")
        lines.append(f"vocabulary ({len(self.vocabulary)}): {' '.join(self.vocabulary)}")
        return "\n".join(lines)


def _words(words: WordCounts) -> str:
    return " | ".join(
        " ".join(symbols) + (f" x{count}" if count > 1 else "") for symbols, count in words
    )


def explain_bpe_training(texts: Iterable[str], *, merges: int = 10) -> BPETraining:
    """Learn up to `merges` merges from the whitespace-separated words of small texts.

    Among equally frequent pairs the one wins whose parts were learned first, the alphabet counting
    in code point order: the rule of the `tokenizers` library.
    """
    counts = Counter(word for text in texts for word in text.split())
    if not counts:
        raise TokenizerError("There is no text to learn merges from.")
    words, ranks = {word: tuple(word) for word in counts}, dict[Pair, int]()
    alphabet = tuple(sorted({symbol for word in counts for symbol in word}))
    index = {symbol: at for at, symbol in enumerate(alphabet)}

    def state() -> WordCounts:
        return tuple((symbols, counts[word]) for word, symbols in words.items())

    start, steps = state(), list[LearnedMerge]()
    while len(steps) < merges:
        pairs: Counter[Pair] = Counter()
        for word, symbols in words.items():
            for pair in itertools.pairwise(symbols):
                pairs[pair] += counts[word]
        highest = max(pairs.values(), default=0)
        if not highest:
            break
        best = [pair for pair in pairs if pairs[pair] == highest]
        best.sort(key=lambda pair: (index[pair[0]], index[pair[1]]))
        index.setdefault("".join(best[0]), len(index))
        ranks[best[0]] = len(ranks)
        words = {word: encode_bpe(word, ranks).tokens for word in counts}
        steps.append(LearnedMerge(best[0], highest, tuple(best[1:]), state()))
    return BPETraining(start, alphabet, tuple(steps), tuple(index))
