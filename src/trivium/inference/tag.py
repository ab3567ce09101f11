"""Token classification: predict a tag for every word (named entities, parts of speech)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from trivium.errors import shorten
from trivium.inference.forward import hidden_states
from trivium.inference.text_model import TextModel
from trivium.text.inputs import encode_words, join_words
from trivium.text.symbols import UNSPACED

# Maximum number of characters in a Chinese word; a few transliterated names are longer. A longer
# run of characters lacks spaces between its words. In a text without any space, a run of more than
# two characters does.
_MAX_WORD_LENGTH, _MAX_LONE_WORD_LENGTH = 6, 2
_CJK = UNSPACED.pattern
# Letters, numbers and combining characters: vowel signs, accents, joiners.
_OTHER = rf"(?!{_CJK})[\w\p{{M}}\u200c\u200d]"
# Punctuation marks within a word belong to the word ("U.S", "don't"), marks at its ends do not.
_WORD = rf"{_OTHER}(?:(?:(?!{_CJK})\S)*{_OTHER})?|(?!\s)\X"
_WORDS = Split(Regex(rf"{_CJK}+|{_WORD}"), behavior="isolated")
_CHARACTERS = Split(Regex(rf"{_CJK}|{_WORD}"), behavior="isolated")


class Word(NamedTuple):
    """A word and its character offsets in the text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TaggedWord:
    """A word, its most probable tag, the tag's probability, and the word's character offsets."""

    word: str
    tag: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Entity:
    """A chunk of IOB tags: its text, type, mean tag probability and character offsets."""

    text: str
    type: str
    score: float
    start: int
    end: int


def find_words(text: str | Sequence[str], *, by_character: bool = True) -> list[Word]:
    """Split a text into words with character offsets.

    In a text, words are separated by spaces, and punctuation marks at the ends of a word are
    separate words. A list of words is not split; offsets then refer to the words joined to a text.

    >>> [word.text for word in find_words("(He isn't in Paris, now.)")]
    ['(', 'He', "isn't", 'in', 'Paris', ',', 'now', '.', ')']

    Args:
        by_character: whether every Chinese or Japanese character is a word. Otherwise, spaces
            separate Chinese and Japanese words, too; if a text seems to have no such spaces, there
            is a warning, and every character is a word.
    """
    if not isinstance(text, str):
        _, starts = join_words(text)
        return [Word(word, start, start + len(word)) for word, start in zip(text, starts)]
    words = _split_words(_WORDS, text)
    if not by_character:
        limit = _MAX_WORD_LENGTH if any(map(str.isspace, text)) else _MAX_LONE_WORD_LENGTH
        if all(len(one.text) <= limit for one in words if UNSPACED.match(one.text)):
            return words
        warnings.warn(
            f'"{shorten(text, 40)}" has no spaces between its words, which this model was trained '
            "on: every character is tagged. Put spaces between words first, for instance with "
            "jieba, or give a list of words.",
            stacklevel=4,
        )
    return _split_words(_CHARACTERS, text)


def _split_words(splitter: Split, text: str) -> list[Word]:
    """Split a text into words with character offsets by a pre-tokenizer, without whitespace."""
    pieces = splitter.pre_tokenize_str(text)
    return [Word(piece, *span) for piece, span in pieces if not piece.isspace()]


def merge_entities(words: Sequence[TaggedWord], text: str) -> list[Entity]:
    """Merge tagged words of a text into entities: chunks of IOB2, BIOES, BILOU, BMES or BMEWO tags.

    Words with other tags are skipped. An I- tag that does not continue a chunk begins a chunk.

    >>> tags = [("New", "B-LOC", 0, 3), ("York", "I-LOC", 4, 8), ("is", "O", 9, 11)]
    >>> words = [TaggedWord(word, tag, 0.5, *span) for word, tag, *span in tags]
    >>> merge_entities(words, "New York is")
    [Entity(text='New York', type='LOC', score=0.5, start=0, end=8)]
    """
    chunks: list[list[TaggedWord]] = []
    open_type = None
    for word in words:
        mark, kind = word.tag[:1], word.tag[2:]
        if not kind or mark not in "BIESLUMW" or word.tag[1] not in "-_":
            open_type = None
            continue
        if mark in "BSUW" or kind != open_type:
            chunks.append([])
        chunks[-1].append(word)
        open_type = None if mark in "ESLUW" else kind
    return [
        Entity(
            text[chunk[0].start : chunk[-1].end],
            chunk[0].tag[2:],
            sum(word.score for word in chunk) / len(chunk),
            chunk[0].start,
            chunk[-1].end,
        )
        for chunk in chunks
    ]


@torch.inference_mode()
def tag_words(
    lm: TextModel,
    sentences: Sequence[Sequence[Word]],
    names: Sequence[str],
    *,
    max_length: int | None,
) -> list[list[TaggedWord]]:
    """Predict the tag of every word from the hidden state of the word's first token.

    Args:
        lm: a model with a tagger head.
        sentences: the words of every sentence.
        names: the names of the tagger's labels.
        max_length: the maximum number of tokens read at once. A longer sentence is read in several
            parts. None: any number.
    """
    tagged: list[list[TaggedWord]] = [[] for _ in sentences]
    texts = [[word.text for word in words] for words in sentences]
    encoded = encode_words(lm.source_tokenizer, texts, max_length=max_length)
    parts = [(number, part) for number, of_one in enumerate(encoded) for part in of_one]
    tags: dict[int, list[tuple[float, int]]] = {}
    for batch, hidden, _ in hidden_states(
        lm, [part.ids for _, part in parts], token_type_ids=[part.type_ids for _, part in parts]
    ):
        best = lm.module.logits(hidden, head="tagger").float().softmax(-1).max(-1)
        probabilities, labels = best.values.tolist(), best.indices.tolist()
        for row, index in enumerate(batch):
            first = parts[index][1].first_tokens
            tags[index] = [(probabilities[row][token], labels[row][token]) for token in first]
    for index, (sentence, part) in enumerate(parts):
        words = sentences[sentence][part.start : part.stop]
        tagged[sentence] += [
            TaggedWord(word.text, names[label], score, word.start, word.end)
            for word, (score, label) in zip(words, tags[index])
        ]
    return tagged
