"""What a model reads of texts, of pairs and of words: ids with their special tokens, cut to fit."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from trivium.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextInput:
    """The ids of a text or a pair; every list has one entry a token.

    `type_ids` are 0 for the first text and 1 for the second; `offsets` are characters of the text
    that a token is of, (0, 0) for special tokens; `texts` says which text that is, None for
    special tokens. `cut` counts the tokens that were left out.
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
) -> list[TextInput]:
    """Texts and pairs as a model reads them.

    An encoder's get what its tokenizer puts around them, such as [CLS] A [SEP] B [SEP]; where it
    puts nothing, a text begins and ends as documents do in training shards, and so do both of a
    pair. What is longer than `max_length` loses tokens at the end, of a pair the longer text first,
    or with `keep_first` only the second text.
    """
    firsts = tokenizer.backend.encode_batch([a for a, _ in texts], add_special_tokens=False)
    seconds = tokenizer.backend.encode_batch([b or "" for _, b in texts], add_special_tokens=False)
    whole = _Ends(tokenizer)
    found = []
    for (_, b), first, second in zip(texts, firsts, seconds):
        pair = None if b is None else second
        extra = whole.num_special(pair is not None)
        found.append(whole.join(first, pair, *_room(first, pair, max_length, extra, keep_first)))
    return found


def _room(
    first: tokenizers.Encoding,
    pair: tokenizers.Encoding | None,
    max_length: int | None,
    extra: int,
    keep_first: bool,
) -> tuple[int, int]:
    """Tokens to keep of the first and of the second text."""
    a, b = len(first), 0 if pair is None else len(pair)
    over = 0 if max_length is None else a + b + extra - max_length
    if over <= 0:
        return a, b
    if pair is None:
        return max(0, a - over), 0
    if keep_first:
        return a, max(0, b - over)
    # The longer one is cut to the length of the other, then both in turn.
    longer = min(over, abs(a - b))
    a, b = (a - longer, b) if a > b else (a, b - longer)
    rest = over - longer
    return max(0, a - rest // 2), max(0, b - (rest - rest // 2))


class _Ends:
    """The special tokens around texts, found out once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.backend = tokenizer.backend
        self.prefix, self.suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
        single = self.backend.encode("a", add_special_tokens=True).ids
        begins = single[: len(self.prefix)] == self.prefix
        ends = single[len(single) - len(self.suffix) :] == self.suffix
        special = set(single) & set(tokenizer.special_ids)
        # What the tokenizer adds by itself is taken as it is, if it begins and ends a text.
        self.template = begins and ends and bool(special)

    def num_special(self, paired: bool) -> int:
        """Special tokens around one text, or around two."""
        if self.template:
            return self.backend.num_special_tokens_to_add(paired)
        return len(self.prefix) + len(self.suffix) * (2 if paired else 1)

    def join(
        self, first: tokenizers.Encoding, pair: tokenizers.Encoding | None, a: int, b: int
    ) -> TextInput:
        """The first `a` and `b` tokens of two texts, with what stands around them."""
        cut = len(first) - a + (0 if pair is None else len(pair) - b)
        if self.template:
            first.truncate(a)
            if pair is not None:
                pair.truncate(b)
            whole = self.backend.post_process(first, pair)
            return TextInput(whole.ids, whole.type_ids, whole.offsets, whole.sequence_ids, cut)
        none, ends = [(0, 0)], len(self.suffix)
        ids = [*self.prefix, *first.ids[:a], *self.suffix]
        offsets = [*none * len(self.prefix), *first.offsets[:a], *none * ends]
        texts: list[int | None] = [*[None] * len(self.prefix), *[0] * a, *[None] * ends]
        types = [0] * len(ids)
        if pair is not None:
            ids += [*pair.ids[:b], *self.suffix]
            offsets += [*pair.offsets[:b], *none * ends]
            texts += [*[1] * b, *[None] * ends]
            types += [1] * (b + ends)
        return TextInput(ids, types, offsets, texts, cut)


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
    encoded = tokenizer.backend.encode_batch([text for text, _ in joined], add_special_tokens=False)
    prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    room = None if max_length is None else max(1, max_length - len(prefix) - len(suffix))
    found = []
    for (_, starts), encoding in zip(joined, encoded):
        first = _first_tokens([stop for _, stop in encoding.offsets], starts)
        runs = []
        for start, stop, begin, end in _runs(first, len(encoding.ids), room):
            ids = [*prefix, *encoding.ids[begin:end], *suffix]
            last = max(len(prefix) + end - begin - 1, 0)
            places = [min(len(prefix) + max(0, t - begin), last) for t in first[start:stop]]
            runs.append(WordsInput(ids, places, start, stop))
        found.append(runs)
    return found


def join_words(words: Sequence[str]) -> tuple[str, list[int]]:
    """Words as running text, and the character each begins at.

    A space stands between two words unless both sides of it are Chinese, Japanese or Thai.

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
    return name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI", "FULLWIDTH", "IDEOGRAPHIC"))


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
    runs, start = [], 0
    while start < len(first):
        begin, stop = first[start], start + 1
        while stop < len(first) and (first[stop + 1] if stop + 1 < len(first) else num_tokens) <= (
            begin + room
        ):
            stop += 1
        end = first[stop] if stop < len(first) else num_tokens
        runs.append((start, stop, begin, min(end, begin + room)))
        start = stop
    return runs
