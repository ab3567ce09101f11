"""What a model reads of texts, of pairs and of words: ids with their special tokens, cut to fit."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from trivium.errors import TokenizerError
from trivium.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextInput:
    """The ids of a text or a pair; every list has one entry a token.

    `type_ids` say first or second text, as the tokenizer numbers them (0 and 1, or 0 alone);
    `offsets` are characters of the text that a token is of, (0, 0) for special tokens; `texts` says
    which text that is, None for special tokens. `cut` counts the tokens that were left out.
    """

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    texts: list[int | None]
    cut: int = 0


def encode_inputs(
    tokenizer: Tokenizer,
    texts: Sequence[tuple[str, str | None]],
    *,
    max_length: int | None = None,
    keep_first: bool = False,
    as_documents: bool = True,
) -> list[TextInput]:
    """Texts and pairs as a model reads them.

    They get what the tokenizer puts around them, such as [CLS] A [SEP] B [SEP]; where that does not
    begin and end a text, a text begins and ends as documents do in training shards, and so do both
    of a pair. What is longer than `max_length` loses tokens at the end: of a pair the longer text
    first, then both in turn, or with `keep_first` only the second text.

    Args:
        as_documents: with False what the tokenizer puts around texts is all they get.

    Raises:
        TokenizerError: a text without a token, where nothing stands around it either.
    """
    firsts = encode_plain(tokenizer, [a for a, _ in texts])
    seconds = iter(encode_plain(tokenizer, [b for _, b in texts if b is not None]))
    frame = Frame(tokenizer, as_documents=as_documents)
    found = []
    for (_, b), first in zip(texts, firsts):
        second = None if b is None else next(seconds)
        sizes = len(first.ids), 0 if second is None else len(second.ids)
        if max_length is not None:
            room = max(0, max_length - frame.num_special(second is not None))
            sizes = _fitting(*sizes, room, keep_first)
        kept = None if second is None else second.part(0, sizes[1])
        cut = len(first.ids) + (0 if second is None else len(second.ids)) - sum(sizes)
        found.append(frame.join(first.part(0, sizes[0]), kept, cut=cut))
    return found


def _fitting(a: int, b: int, room: int, keep_first: bool) -> tuple[int, int]:
    """Tokens to keep of two texts of `a` and `b`, as the `tokenizers` library decides it."""
    if a + b <= room:
        return a, b
    if keep_first:
        return a, max(0, room - a)
    short = min(a, b)
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return (long, short) if a > b else (short, long)


class PlainTokens(NamedTuple):
    """The ids of a text with nothing around it, and the characters that each is of."""

    ids: list[int]
    offsets: list[tuple[int, int]]

    def part(self, start: int, stop: int) -> PlainTokens:
        """The tokens from `start` up to `stop`."""
        return PlainTokens(self.ids[start:stop], self.offsets[start:stop])


def encode_plain(tokenizer: Tokenizer, texts: Sequence[str]) -> list[PlainTokens]:
    """The tokens of many texts, with nothing around them."""
    found = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [PlainTokens(list(each.ids), list(each.offsets)) for each in found]


class _Layout(NamedTuple):
    """Special tokens before, between and behind texts; their type ids, and those of each text."""

    specials: list[list[int]]
    types: list[list[int]]
    text_types: list[int]


class Frame:
    """What a tokenizer puts around texts and pairs, found out once; see `encode_inputs`."""

    def __init__(self, tokenizer: Tokenizer, *, as_documents: bool = True) -> None:
        single, pair = _told_layout(tokenizer, 1), _told_layout(tokenizer, 2)
        prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
        before, behind = single.specials
        whole = before[: len(prefix)] == prefix and behind[len(behind) - len(suffix) :] == suffix
        if as_documents and not whole:
            size = len(suffix)
            single = _Layout([prefix, suffix], [[0] * len(prefix), [0] * size], [0])
            types = [[0] * len(prefix), [0] * size, [1] * size]
            pair = _Layout([prefix, suffix, suffix], types, [0, 1])
        self._layouts = {1: single, 2: pair}
        self._alone = suffix[:1]

    def num_special(self, paired: bool) -> int:
        """Special tokens around one text, or around two."""
        return sum(map(len, self._layouts[2 if paired else 1].specials))

    def join(
        self, first: PlainTokens, second: PlainTokens | None = None, *, cut: int = 0
    ) -> TextInput:
        """One text or two, with what stands around them. `cut` is noted in the result.

        Nothing at all is read as the end of a text, if there is such a token.
        """
        texts = [first] if second is None else [first, second]
        specials, types, text_types = self._layouts[len(texts)]
        found = TextInput([], [], [], [], cut)
        _add(found, specials[0], types[0])
        for number, text in enumerate(texts):
            size = len(text.ids)
            found.ids.extend(text.ids)
            found.type_ids.extend([text_types[number]] * size)
            found.offsets.extend(text.offsets)
            found.texts.extend([number] * size)
            _add(found, specials[number + 1], types[number + 1])
        if not found.ids:
            if not self._alone:
                raise TokenizerError(
                    "a text is empty, and this tokenizer has no token that stands for an end of "
                    "text to read in its place."
                )
            _add(found, self._alone, [0])
        return found


def _add(found: TextInput, specials: list[int], types: list[int]) -> None:
    """Put special tokens behind what there is."""
    found.ids.extend(specials)
    found.type_ids.extend(types)
    found.offsets.extend([(0, 0)] * len(specials))
    found.texts.extend([None] * len(specials))


def _told_layout(tokenizer: Tokenizer, count: int) -> _Layout:
    """What a tokenizer puts around one text or two by itself, told from an example."""
    backend = tokenizer.backend
    example = next(
        text
        for text in chain("a", tokenizer.tokens)
        if len(backend.encode(text, add_special_tokens=False))
    )
    whole = backend.encode(example, example if count == 2 else None)
    specials: list[list[int]] = [[] for _ in range(count + 1)]
    types: list[list[int]] = [[] for _ in range(count + 1)]
    text_types, seen = [0] * count, 0
    for index, kind, text in zip(whole.ids, whole.type_ids, whole.sequence_ids):
        if text is None:
            specials[seen].append(index)
            types[seen].append(kind)
        else:
            seen, text_types[text] = text + 1, kind
    return _Layout(specials, types, text_types)


@dataclass(frozen=True, slots=True)
class WordsInput:
    """The ids of a run of words, which are numbered `start` up to `stop` in their sentence.

    `places` has the token of every word, the one its first character is in.
    """

    ids: list[int]
    places: list[int]
    start: int
    stop: int


def encode_words(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], *, max_length: int | None = None
) -> list[list[WordsInput]]:
    """Sentences of words as a model reads them: one run each, or several where they are too long.

    Words are joined as they stand in running text, so that their tokens are those a model knows.
    A word without a token of its own, as one of spaces alone, shares that of its neighbour.
    """
    joined = [join_words(words) for words in sentences]
    encoded = encode_plain(tokenizer, [text for text, _ in joined])
    prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    nothing = [index for index in (tokenizer.unk_id, 0) if index is not None][:1]
    room = None if max_length is None else max(1, max_length - len(prefix) - len(suffix))
    found = []
    for (_, starts), (tokens, offsets) in zip(joined, encoded):
        first = _first_tokens([stop for _, stop in offsets], starts)
        runs = []
        for start, stop, begin, end in _runs(first, len(tokens), room):
            ids = [*prefix, *tokens[begin:end], *suffix] or nothing
            last = max(len(prefix) + end - begin - 1, 0)
            places = [min(len(prefix) + t - begin, last) for t in first[start:stop]]
            runs.append(WordsInput(ids, places, start, stop))
        found.append(runs)
    return found


# How the names of their characters begin; CJK punctuation is told from its block.
_UNSPACED = ("CJK", "FULLWIDTH", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR")


def join_words(words: Sequence[str]) -> tuple[str, list[int]]:
    """Words as running text, and the character each begins at.

    A space stands between two words unless both sides of it are Chinese, Japanese, Thai, Lao,
    Khmer or Burmese.

    >>> join_words(["to", "be", "\u4f60", "\u597d"])
    ('to be \u4f60\u597d', [0, 3, 6, 7])
    """
    text, starts = "", []
    for word in words:
        if text and word and not (_unspaced(text[-1]) and _unspaced(word[0])):
            text += " "
        starts.append(len(text))
        text += word
    return text, starts


def _unspaced(character: str) -> bool:
    """Whether a character is of a script that is written without spaces."""
    if character.isascii():
        return False
    name = unicodedata.name(character, "")
    return name.startswith(_UNSPACED) or "\u3000" <= character <= "\u303f"


def _first_tokens(stops: list[int], starts: list[int]) -> list[int]:
    """For the character each word begins at, the first token that ends behind it."""
    found, token = [], 0
    for start in starts:
        while token < len(stops) - 1 and stops[token] <= start:
            token += 1
        found.append(token)
    return found


def _runs(first: list[int], num_tokens: int, room: int | None) -> list[tuple[int, int, int, int]]:
    """Ranges of words and of their tokens, each of at most `room` tokens (a longer word is cut)."""
    if not first:
        return []
    if room is None or num_tokens <= room:
        return [(0, len(first), 0, num_tokens)]
    # Words that share a token have it both, on whatever side of a border they are.
    ends = [max(token + 1, after) for token, after in zip(first, [*first[1:], num_tokens])]
    runs, start = [], 0
    while start < len(first):
        begin, stop = first[start], start + 1
        while stop < len(first) and ends[stop] <= begin + room:
            stop += 1
        runs.append((start, stop, begin, min(ends[stop - 1], begin + room)))
        start = stop
    return runs
