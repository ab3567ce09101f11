"""Model inputs from texts, pairs and words: ids with special tokens, truncated to a length."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trivium.errors import TokenizerError
from trivium.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextInput:
    """The ids of a text or a pair; every list has one entry per token.

    `type_ids` number the texts as the tokenizer does (0 and 1, or 0 alone); `offsets` are
    characters of the text a token belongs to, (0, 0) for special tokens; `texts` is the index of
    that text, None for special tokens. `cut` counts the tokens lost to truncation.
    """

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    texts: list[int | None]
    cut: int = 0


class PlainTokens(NamedTuple):
    """The ids of a text without special tokens, and the characters of each."""

    ids: list[int]
    offsets: list[tuple[int, int]]

    def part(self, start: int, stop: int) -> PlainTokens:
        """The tokens from `start` up to `stop`."""
        return PlainTokens(self.ids[start:stop], self.offsets[start:stop])


def encode_plain(tokenizer: Tokenizer, texts: Sequence[str]) -> list[PlainTokens]:
    """The tokens of many texts, without special tokens."""
    batch = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [PlainTokens(list(one.ids), list(one.offsets)) for one in batch]


def encode_inputs(
    tokenizer: Tokenizer,
    texts: Sequence[tuple[str, str | None]],
    *,
    max_length: int | None = None,
    keep_first: bool = False,
    as_documents: bool = True,
) -> list[TextInput]:
    """Texts and pairs as model inputs, with special tokens such as [CLS] A [SEP] B [SEP].

    Where they exceed `max_length` tokens are cut at the end: of a pair the longer text first, then
    both in turn, or with `keep_first` only the second text.

    Args:
        as_documents: where the tokenizer does not add tokens before and after a text by itself,
            add those of documents in training shards; with False, nothing is added.

    Raises:
        TokenizerError: an empty text in a vocabulary without special tokens.
    """
    firsts = encode_plain(tokenizer, [a for a, _ in texts])
    seconds = iter(encode_plain(tokenizer, [b for _, b in texts if b is not None]))
    frame = Frame(tokenizer, as_documents=as_documents)
    inputs = []
    for (_, b), first in zip(texts, firsts, strict=True):
        second = None if b is None else next(seconds)
        sizes = len(first.ids), 0 if second is None else len(second.ids)
        total = sum(sizes)
        if max_length is not None:
            capacity = max(0, max_length - frame.num_special(second is not None))
            sizes = _truncated_sizes(*sizes, capacity, keep_first)
        kept = None if second is None else second.part(0, sizes[1])
        inputs.append(frame.join(first.part(0, sizes[0]), kept, cut=total - sum(sizes)))
    return inputs


def _truncated_sizes(a: int, b: int, capacity: int, keep_first: bool) -> tuple[int, int]:
    """Tokens to keep of two texts of `a` and `b`, as the `tokenizers` library decides it."""
    if a + b <= capacity:
        return a, b
    if keep_first:
        return a, max(0, capacity - a)
    short = min(a, b)
    long = max(short, capacity - short)
    if short + long > capacity:
        short, long = capacity // 2, capacity - capacity // 2
    return (long, short) if a > b else (short, long)


class _Layout(NamedTuple):
    """Special tokens before, between and after texts; their type ids, and those of each text."""

    specials: list[list[int]]
    types: list[list[int]]
    text_types: list[int]


class Frame:
    """The special tokens around one text and around a pair; see `encode_inputs`."""

    def __init__(self, tokenizer: Tokenizer, *, as_documents: bool = True) -> None:
        single, pair = _layout(tokenizer, 1), _layout(tokenizer, 2)
        prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
        before, after = single.specials
        complete = before[: len(prefix)] == prefix and after[len(after) - len(suffix) :] == suffix
        if as_documents and not complete:
            size = len(suffix)
            single = _Layout([prefix, suffix], [[0] * len(prefix), [0] * size], [0])
            types = [[0] * len(prefix), [0] * size, [1] * size]
            pair = _Layout([prefix, suffix, suffix], types, [0, 1])
        self._layouts = {1: single, 2: pair}
        self._end_of_text = suffix[:1]

    def num_special(self, paired: bool) -> int:
        """Special tokens around one text, or around two."""
        return sum(map(len, self._layouts[2 if paired else 1].specials))

    def join(
        self, first: PlainTokens, second: PlainTokens | None = None, *, cut: int = 0
    ) -> TextInput:
        """One text or two with their special tokens; `cut` is noted in the result.

        Without any token at all, the input is the end-of-text token.
        """
        texts = [first] if second is None else [first, second]
        specials, types, text_types = self._layouts[len(texts)]
        joined = TextInput([], [], [], [], cut)
        _append(joined, specials[0], types[0])
        for number, text in enumerate(texts):
            size = len(text.ids)
            joined.ids.extend(text.ids)
            joined.type_ids.extend([text_types[number]] * size)
            joined.offsets.extend(text.offsets)
            joined.texts.extend([number] * size)
            _append(joined, specials[number + 1], types[number + 1])
        if not joined.ids:
            if not self._end_of_text:
                raise TokenizerError(
                    "A text is empty, and this tokenizer has no end-of-text token to put in its "
                    "place."
                )
            _append(joined, self._end_of_text, [0])
        return joined


def _append(joined: TextInput, specials: list[int], types: list[int]) -> None:
    joined.ids.extend(specials)
    joined.type_ids.extend(types)
    joined.offsets.extend([(0, 0)] * len(specials))
    joined.texts.extend([None] * len(specials))


def _layout(tokenizer: Tokenizer, count: int) -> _Layout:
    """The special tokens that a tokenizer adds to one text or two, read off an example."""
    backend = tokenizer.backend
    example = next(
        text
        for text in itertools.chain("a", tokenizer.tokens)
        if len(backend.encode(text, add_special_tokens=False))
    )
    whole = backend.encode(example, example if count == 2 else None)
    specials: list[list[int]] = [[] for _ in range(count + 1)]
    types: list[list[int]] = [[] for _ in range(count + 1)]
    text_types, seen = [0] * count, 0
    for index, kind, text in zip(whole.ids, whole.type_ids, whole.sequence_ids, strict=True):
        if text is None:
            specials[seen].append(index)
            types[seen].append(kind)
        else:
            seen, text_types[text] = text + 1, kind
    return _Layout(specials, types, text_types)


@dataclass(frozen=True, slots=True)
class WordsInput:
    """The ids of a window of words, from word `start` up to `stop` of their sentence.

    `first_tokens` has, for each word, the position in `ids` of its first sub-token.
    """

    ids: list[int]
    first_tokens: list[int]
    start: int
    stop: int


def encode_words(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], *, max_length: int | None = None
) -> list[list[WordsInput]]:
    """Sentences of words as model inputs: one window each, or several that do not overlap.

    Words are joined to running text, so that their tokens are those the model was trained on. A
    word without a token of its own, such as spaces alone, shares that of its neighbour.
    """
    joined = [join_words(words) for words in sentences]
    encoded = encode_plain(tokenizer, [text for text, _ in joined])
    prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    if max_length is not None:
        max_length = max(1, max_length - len(prefix) - len(suffix))
    inputs = []
    for (_, starts), (tokens, offsets) in zip(joined, encoded, strict=True):
        first = _first_tokens([stop for _, stop in offsets], starts)
        windows = []
        for start, stop, begin, end in _windows(first, len(tokens), max_length):
            ids = [*prefix, *tokens[begin:end], *suffix] or [tokenizer.unk_id or 0]
            last = max(len(prefix) + end - begin - 1, 0)
            shifted = [min(len(prefix) + token - begin, last) for token in first[start:stop]]
            windows.append(WordsInput(ids, shifted, start, stop))
        inputs.append(windows)
    return inputs


# How the Unicode names of characters begin that are written without spaces.
_UNSPACED = ("CJK", "FULLWIDTH", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR")


def join_words(words: Sequence[str]) -> tuple[str, list[int]]:
    """Words as running text, and the character each begins at.

    There is a space between two words unless both sides of it are Chinese, Japanese, Thai, Lao,
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
    """For the character each word begins at, the first token that ends after it."""
    first, token = [], 0
    for start in starts:
        while token < len(stops) - 1 and stops[token] <= start:
            token += 1
        first.append(token)
    return first


def _windows(
    first: list[int], num_tokens: int, max_tokens: int | None
) -> list[tuple[int, int, int, int]]:
    """Ranges of words and of their tokens, each of at most `max_tokens`; a longer word is cut."""
    if not first:
        return []
    if max_tokens is None or num_tokens <= max_tokens:
        return [(0, len(first), 0, num_tokens)]
    # Two words that share a token both need it, in whichever windows they are.
    following = [*first[1:], num_tokens]
    ends = [max(token + 1, after) for token, after in zip(first, following, strict=True)]
    windows, start = [], 0
    while start < len(first):
        begin, stop = first[start], start + 1
        while stop < len(first) and ends[stop] <= begin + max_tokens:
            stop += 1
        windows.append((start, stop, begin, min(ends[stop - 1], begin + max_tokens)))
        start = stop
    return windows
