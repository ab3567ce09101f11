"""Byte-pair encoding on characters (Sennrich et al. 2016), and how it learns and applies merges."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from trivium.errors import TokenizerError
from trivium.text.explanation import Explanation, explain_word
from trivium.text.roles import TEXT_SPECIALS
from trivium.text.tokenizer import Tokenizer
from trivium.text.trainers import CharacterTokenizerConfig, SpecialTokens

Pair = tuple[str, str]


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
        backend = tokenizers.Tokenizer(models.BPE(unk_token=self.unknown_token, fuse_unk=True))
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
        self.run_trainer(backend, trainers.BpeTrainer, texts, min_frequency=self.min_frequency)
        return backend

    @classmethod
    def explain_words(cls, tokenizer: Tokenizer, words: Sequence[str]) -> list[Explanation]:
        """Apply merges one by one."""
        return explain_by_merges(tokenizer, words, str)


def explain_by_merges(
    tokenizer: Tokenizer, words: Sequence[str], display: Callable[[str], str]
) -> list[Explanation]:
    """Explain words by the merges of a BPE model; `display` makes its symbols readable."""
    model = tokenizer.model
    ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
    whole_words = model["vocab"] if model.get("ignore_merges") else {}
    return [
        explain_word(display(word), (display(word),))
        if word in whole_words
        else explain_merges(word, ranks, display)
        for word in words
    ]


def explain_merges(
    word: str, ranks: Mapping[Pair, int], display: Callable[[str], str] = str
) -> Explanation:
    """Apply merges to one word: always the pair learned first, its leftmost occurrence first.

    >>> explain_merges("theme", {("h", "e"): 0, ("t", "he"): 1}).tokens
    ('the', 'm', 'e')
    """
    symbols, merges = list(word), []
    tokens = start = tuple(map(display, word))
    lines = [f"{display(word)}: {' '.join(start)}"]
    while pairs := [pair for pair in itertools.pairwise(symbols) if pair in ranks]:
        pair = min(pairs, key=lambda pair: ranks[pair])
        at = list(itertools.pairwise(symbols)).index(pair)
        symbols[at : at + 2] = ["".join(pair)]
        (left, right), tokens = map(display, pair), tuple(map(display, symbols))
        merges.append({"pair": (left, right), "rank": ranks[pair], "symbols": tokens})
        lines.append(f"    {left} + {right} (rank {ranks[pair]}): {' '.join(tokens)}")
    facts = {"word": display(word), "tokens": tokens, "symbols": start, "merges": merges}
    return Explanation(lines, facts)


def explain_bpe_training(texts: Iterable[str], *, merges: int = 10) -> Explanation:
    """Learn up to `merges` merges from the whitespace-separated words of small texts.

    The facts: the `words` as characters with their counts, the `alphabet`, every merge with its
    count, the pairs that were as frequent and the words after it, and the `vocabulary`.
    """
    counts = Counter(word for text in texts for word in text.split())
    if not counts:
        raise TokenizerError("There is no text to learn merges from.")
    alphabet = tuple(sorted({character for word in counts for character in word}))
    backend = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + merges, show_progress=False)
    backend.train_from_iterator(counts.elements(), trainer)
    ids, learned = backend.get_vocab(), json.loads(backend.to_str())["model"]["merges"]
    words = start = tuple((tuple(word), count) for word, count in counts.items())
    ranks, steps = dict[Pair, int](), []
    lines = [f"start: {_words(start)}", f"alphabet: {' '.join(alphabet)}"]
    for left, right in learned[:merges]:
        frequency: Counter[Pair] = Counter()
        for symbols, count in words:
            for pair in itertools.pairwise(symbols):
                frequency[pair] += count
        count = frequency[left, right]
        ties = [pair for pair in frequency if frequency[pair] == count and pair != (left, right)]
        ties.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        ranks[left, right] = len(ranks)
        words = tuple((explain_merges(word, ranks).tokens, n) for word, n in counts.items())
        steps.append({"pair": (left, right), "count": count, "ties": ties, "words": words})
        as_frequent = ", ".join(" ".join(pair) for pair in ties)
        lines.append(
            f"merge {len(ranks)}: {left} + {right} -> {left}{right}, {count} times"
            + (f" (as frequent: {as_frequent})" if ties else "")
        )
        lines.append(f"    {_words(words)}")
    vocabulary = tuple(dict.fromkeys([*alphabet, *map("".join, ranks)]))
    lines.append(f"vocabulary ({len(vocabulary)}): {' '.join(vocabulary)}")
    facts = {"words": start, "alphabet": alphabet, "merges": steps, "vocabulary": vocabulary}
    return Explanation(lines, facts)


def _words(words: Iterable[tuple[tuple[str, ...], int]]) -> str:
    return " | ".join(
        " ".join(symbols) + (f" x{count}" if count > 1 else "") for symbols, count in words
    )
