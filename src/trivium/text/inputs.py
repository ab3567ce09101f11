"""Encodes texts, pairs of texts and lists of words as model inputs.

Special tokens are added, and long inputs are truncated or split into windows.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trivium.errors import TokenizerError
from trivium.text.symbols import SPACE, is_unspaced
from trivium.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextInput:
    """The model input for a text or a pair of texts. Every list has one entry per token.

    Args:
        ids: the token ids.
        type_ids: the token type ids. Some tokenizers use 0 for both texts of a pair.
        offsets: the character offsets (start, stop) of each token in its text; (0, 0) for special
            tokens.
        texts: for each token, the index of its text, 0 or 1; None for special tokens.
        cut: the number of tokens that truncation removed.
    """

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    texts: list[int | None]
    cut: int = 0


class PlainTokens(NamedTuple):
    """The tokens of a text without special tokens: ids, and character offsets of each token."""

    ids: list[int]
    offsets: list[tuple[int, int]]

    def part(self, start: int, stop: int) -> PlainTokens:
        """Return the tokens from index `start` to `stop` - 1."""
        return PlainTokens(self.ids[start:stop], self.offsets[start:stop])


def encode_plain(tokenizer: Tokenizer, texts: Sequence[str]) -> list[PlainTokens]:
    """Tokenize texts without special tokens. Returns a `PlainTokens` for each text."""
    batch = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [PlainTokens(list(one.ids), list(one.offsets)) for one in batch]


def encode_inputs(
    tokenizer: Tokenizer,
    texts: Sequence[tuple[str, str | None]],
    *,
    max_length: int | None = None,
    as_documents: bool = True,
) -> list[TextInput]:
    """Encode texts or pairs of texts as model inputs, such as [CLS] A [SEP] B [SEP].

    A text is truncated at its end if the input is longer than `max_length`. In a pair, the longer
    text is truncated first. If that is not enough, both texts are truncated to about equal lengths.

    Args:
        tokenizer: the tokenizer.
        texts: pairs (text, second text); the second text is None for single texts.
        max_length: the maximum number of tokens, including special tokens; None for no limit.
        as_documents: if the tokenizer has no template, whether to add the special tokens that
            surround documents in token shards. A template is always applied.

    Raises:
        TokenizerError: a text is empty and the tokenizer has no special tokens, or its template
            repeats or omits a text.
    """
    firsts = encode_plain(tokenizer, [a for a, _ in texts])
    seconds = iter(encode_plain(tokenizer, [b for _, b in texts if b is not None]))
    template = SpecialTokenTemplate(tokenizer, as_documents=as_documents)
    inputs = []
    for (_, b), first in zip(texts, firsts, strict=True):
        second = None if b is None else next(seconds)
        sizes = len(first.ids), 0 if second is None else len(second.ids)
        total = sum(sizes)
        if max_length is not None:
            capacity = max(0, max_length - template.count_special(second is not None))
            sizes = _truncate_lengths(*sizes, capacity)
        kept = None if second is None else second.part(0, sizes[1])
        inputs.append(template.build_input(first.part(0, sizes[0]), kept, cut=total - sum(sizes)))
    return inputs


def encode_windows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_length: int | None = None,
    as_documents: bool = True,
) -> list[list[TextInput]]:
    """Encode texts as model inputs, and split long texts into windows without overlap.

    The arguments are those of `encode_inputs`. Returns a list of windows for each text. There are
    as few windows as possible, all of about equal length.
    """
    template = SpecialTokenTemplate(tokenizer, as_documents=as_documents)
    windows = []
    for tokens in encode_plain(tokenizer, texts):
        total = max(1, len(tokens.ids))
        most = total if max_length is None else max(1, max_length - template.count_special(False))
        size = math.ceil(total / math.ceil(total / most))
        starts = range(0, total, size)
        windows.append([template.build_input(tokens.part(start, start + size)) for start in starts])
    return windows


def _truncate_lengths(length_a: int, length_b: int, max_total: int) -> tuple[int, int]:
    """Return the lengths of the two texts of a pair after truncation.

    The longer text is truncated first (`longest_first` in the `tokenizers` library).

    Args:
        length_a, length_b: the lengths of the two texts in tokens.
        max_total: the maximum number of tokens of both texts together.
    """
    if length_a + length_b <= max_total:
        return length_a, length_b
    short = min(length_a, length_b)
    long = max(short, max_total - short)
    if short + long > max_total:
        short, long = max_total // 2, max_total - max_total // 2
    return (long, short) if length_a > length_b else (short, long)


class _Slot(NamedTuple):
    """An element of a special-token template: a special token, or a placeholder for a text.

    Args:
        special: the id of the special token; None for a placeholder.
        type_id: the token type id.
        text: the index of the text; None for a special token.
    """

    special: int | None
    type_id: int
    text: int | None = None


class SpecialTokenTemplate:
    """The special tokens that are added to a text or to a pair of texts.

    The tokenizer's post-processor defines them. If the post-processor has no template, the special
    tokens are those that surround documents in token shards, or none if `as_documents` is False.

    Attributes:
        before: the token ids that are added before a single text.
        after: the token ids that are added after a single text.
    """

    def __init__(self, tokenizer: Tokenizer, *, as_documents: bool = True) -> None:
        single, pair = _derive_template(tokenizer, 1), _derive_template(tokenizer, 2)
        if as_documents and not tokenizer.has_template:
            after = tokenizer.suffix_ids
            before = [_Slot(token, 0) for token in tokenizer.prefix_ids]
            single = [*before, _Slot(None, 0, 0), *(_Slot(token, 0) for token in after)]
            pair = [*single, _Slot(None, 1, 1), *(_Slot(token, 1) for token in after)]
        self._single, self._pair = single, pair
        self._end_of_text = list(tokenizer.suffix_ids[:1])
        place = next(i for i, slot in enumerate(single) if slot.text == 0)
        self.before = [slot.special or 0 for slot in single[:place]]
        self.after = [slot.special or 0 for slot in single[place + 1 :]]

    def count_special(self, paired: bool) -> int:
        """Return the number of special tokens added to a single text, or to a pair if `paired`."""
        return len(self._pair) - 2 if paired else len(self._single) - 1

    def build_input(
        self, first: PlainTokens, second: PlainTokens | None = None, *, cut: int = 0
    ) -> TextInput:
        """Return the model input for a text or a pair of texts, with special tokens.

        `cut`, the number of tokens that truncation removed, is only stored in the result. If there
        are no tokens at all, the input is the end-of-text token.

        Raises TokenizerError if there are no tokens, and the tokenizer has no end-of-text token.
        """
        joined = TextInput([], [], [], [], cut)
        for special, type_id, text in self._single if second is None else self._pair:
            tokens = second if text == 1 else first
            if tokens is None or special is not None:
                tokens = PlainTokens([special or 0], [(0, 0)])
            joined.ids.extend(tokens.ids)
            joined.type_ids.extend([type_id] * len(tokens.ids))
            joined.offsets.extend(tokens.offsets)
            joined.texts.extend([text] * len(tokens.ids))
        if joined.ids:
            return joined
        if not self._end_of_text:
            raise TokenizerError(
                "A text is empty, and this tokenizer has no end-of-text token to put in its place."
            )
        return TextInput([*self._end_of_text], [0], [(0, 0)], [None], cut)


def _derive_template(tokenizer: Tokenizer, count: int) -> list[_Slot]:
    """Derive the special-token template for `count` texts (1 or 2) by encoding an example.

    Raises TokenizerError if the tokenizer's post-processor repeats or omits a text.
    """
    backend = tokenizer.backend
    example, size = next(
        (text, size)
        for text in itertools.chain("a", tokenizer.tokens)
        if (size := len(backend.encode(text, add_special_tokens=False)))
    )
    whole = backend.encode(example, example if count == 2 else None)
    layout: list[_Slot] = []
    for index, kind, text in zip(whole.ids, whole.type_ids, whole.sequence_ids, strict=True):
        if text is None:
            layout.append(_Slot(index, kind))
        elif not layout or layout[-1].text != text:
            layout.append(_Slot(None, kind, text))
    texts = [slot.text for slot in layout if slot.text is not None]
    if sorted(texts) != [*range(count)] or len(whole) != len(layout) - count + size * count:
        raise TokenizerError(
            "the post-processor of this tokenizer repeats a text or leaves one out, so that texts "
            "cannot be cut to the length of the model. Change the template in tokenizer.json so "
            "that it has every text once."
        )
    return layout


@dataclass(frozen=True, slots=True)
class WordsInput:
    """The model input for one window of a sentence, the words from `start` to `stop` - 1.

    Args:
        ids: the token ids.
        type_ids: the token type ids.
        first_tokens: for each word of the window, the index of its first token in `ids`.
        start: the index of the window's first word in the sentence.
        stop: the index of its last word in the sentence, plus 1.
        cut: the number of tokens that were removed because a word is longer than a window.
    """

    ids: list[int]
    type_ids: list[int]
    first_tokens: list[int]
    start: int
    stop: int
    cut: int = 0


def encode_words(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], *, max_length: int | None = None
) -> list[list[WordsInput]]:
    """Encode sentences that are given as lists of words. Returns a list of windows per sentence.

    A sentence longer than `max_length` tokens is split into windows without overlap. The words are
    joined into running text, so that they are tokenized as in training. If two words are joined
    without a space, no token spans both of them. A word that has no token of its own, such as a
    word of spaces, shares the token of its neighbour.
    """
    joined = [join_words(words) for words in sentences]
    encoded = _encode_joined_words(tokenizer, joined)
    template = SpecialTokenTemplate(tokenizer)
    if max_length is not None:
        max_length = max(1, max_length - template.count_special(paired=False))
    inputs = []
    for (_, starts), (tokens, stops) in zip(joined, encoded, strict=True):
        # The first token of each word: the first token that ends after the word's first character.
        most = max(len(stops) - 1, 0)
        first = [min(bisect.bisect_right(stops, start), most) for start in starts]
        windows, following = [], [*first[1:], len(tokens)]
        for start, stop, begin, end in _split_into_windows(first, len(tokens), max_length):
            part = tokens[begin:end]
            if not part and not template.count_special(paired=False):
                part = [tokenizer.unk_id or 0]
            whole = template.build_input(PlainTokens(part, [(0, 0)] * len(part)))
            before = len(template.before)
            last = max(before + end - begin - 1, 0)
            shifted = [min(before + token - begin, last) for token in first[start:stop]]
            cut = max(0, following[stop - 1] - end)
            windows.append(WordsInput(whole.ids, whole.type_ids, shifted, start, stop, cut))
        inputs.append(windows)
    return inputs


def _encode_joined_words(
    tokenizer: Tokenizer, joined_texts: Sequence[tuple[str, list[int]]]
) -> list[tuple[list[int], list[int]]]:
    """Tokenize running texts made of words. Returns pairs (token ids, end offset of each token).

    Words that are joined without a space are encoded separately. `joined_texts` contains pairs
    (text, character offset of each word) from `join_words`. The end offsets are in characters.
    """
    pieces: list[tuple[int, int, str]] = []
    for number, (text, starts) in enumerate(joined_texts):
        cuts = [start for start in starts if start and text[start - 1] != " "]
        for start, stop in itertools.pairwise((0, *cuts, len(text))):
            pieces.append((number, start, text[start:stop]))
    encoded: list[tuple[list[int], list[int]]] = [([], []) for _ in joined_texts]
    space = tokenizer.backend.token_to_id(SPACE)
    plain = encode_plain(tokenizer, [piece for _, _, piece in pieces])
    for (number, start, _), tokens in zip(pieces, plain, strict=True):
        ids, stops = encoded[number]
        # The space that a tokenizer puts before a text belongs to its first word only.
        added = start > 0 and tokens.ids[:1] == [space]
        ids += tokens.ids[added:]
        stops += [start + stop for _, stop in tokens.offsets[added:]]
    return encoded


def join_words(words: Sequence[str]) -> tuple[str, list[int]]:
    """Join words into running text. Returns the text, and the character offset of each word.

    Two words are separated by a space, unless both adjacent characters are Chinese, Japanese, Thai,
    Lao, Khmer or Burmese.

    >>> join_words(["to", "be", "\u4f60", "\u597d"])
    ('to be \u4f60\u597d', [0, 3, 6, 7])
    """
    text, starts = "", []
    for word in words:
        if text and word and not (is_unspaced(text[-1]) and is_unspaced(word[0])):
            text += " "
        starts.append(len(text))
        text += word
    return text, starts


def _split_into_windows(
    first_tokens: list[int], num_tokens: int, max_tokens: int | None
) -> list[tuple[int, int, int, int]]:
    """Split a sentence of words into windows of at most `max_tokens` tokens.

    Returns a tuple (start word, stop word, start token, stop token) for each window. The stop
    indices are exclusive.

    Args:
        first_tokens: the index of the first token of each word.
        num_tokens: the number of tokens in the sentence.
        max_tokens: the maximum number of tokens per window; None for no limit. A word with more
            tokens is truncated.
    """
    if not first_tokens:
        return []
    if max_tokens is None or num_tokens <= max_tokens:
        return [(0, len(first_tokens), 0, num_tokens)]
    # Two words may share a token; if they are in different windows, both windows contain it.
    following = [*first_tokens[1:], num_tokens]
    ends = [max(token + 1, after) for token, after in zip(first_tokens, following, strict=True)]
    windows, start = [], 0
    while start < len(first_tokens):
        begin, stop = first_tokens[start], start + 1
        while stop < len(first_tokens) and ends[stop] <= begin + max_tokens:
            stop += 1
        windows.append((start, stop, begin, min(ends[stop - 1], begin + max_tokens)))
        start = stop
    return windows
