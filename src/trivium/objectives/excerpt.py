"""Short excerpts of texts in any language, for samples and example commands in reports."""

from __future__ import annotations

import itertools
import re
from typing import Any

from trivium.inference.text_model import prompt_ids
from trivium.language_model import LanguageModel
from trivium.text.inputs import join_words
from trivium.text.symbols import UNSPACED, WORD

_CONTINUATION = 40  # tokens that are generated

# In the bundled text an ASCII full stop after a Chinese character ends a heading, not a sentence.
_SENTENCE = re.compile(
    rf"[^\n\u3002\uff01\uff1f]+?(?:[\u3002\uff01\uff1f]|(?<!{UNSPACED.pattern})[.!?](?=\s|$))"
)
_MIN_WORDS, _MAX_WORDS = 5, 30  # per excerpt


def split_words(text: str) -> list[str]:
    """Split a text into words. Each Chinese or Japanese character counts as one word.

    >>> split_words("to be \u4f60\u597d!")
    ['to', 'be', '\u4f60', '\u597d', '!']
    """
    return WORD.findall(text)


def first_words(text: str, count: int) -> str:
    """Return the first `count` words of the first sentence of a text."""
    text = _find_sentence(text)
    return text[: max((word.end() for word in _find_first_words(text, count)), default=0)]


def mask_middle(
    text: str, mask_token: str, *, words: int = _MAX_WORDS, span: int = 1
) -> tuple[str, str] | None:
    """Replace `span` words in the middle of a text's first sentence with one mask token.

    The sentence is first truncated to `words` words. Returns the sentence with the mask, and the
    masked words. Returns None if the sentence has too few words.

    >>> mask_middle("it was a dark and stormy night", "[MASK]")
    ('it was a [MASK] and stormy night', 'dark')
    """
    text = _find_sentence(text)
    matches = _find_first_words(text, words)
    if len(matches) < span + 2:
        return None
    middle = (len(matches) + 1 - span) // 2
    # Mask a punctuation mark only if nothing else is left.
    not_marks = (i for i in range(middle, len(matches) - span) if matches[i][0][0].isalnum())
    first = next(not_marks, middle)
    start, stop = matches[first].start(), matches[first + span - 1].end()
    return text[:start] + mask_token + text[stop : matches[-1].end()], text[start:stop]


def generate_continuation(
    lm: LanguageModel, text: str, num_words: int, **options: Any
) -> tuple[str, str] | None:
    """Return the first `num_words` words of a text as a prompt, and a generated continuation.

    Prompt and continuation together are at most as long as the sequences on which the model was
    trained. Returns None if the prompt leaves no room for a continuation. `options` are passed to
    `lm.generate`.
    """
    prompt = first_words(text, num_words)
    limit = (lm.trained_length or 1 << 30) - len(prompt_ids(lm, prompt))
    if limit < 1:
        return None
    return prompt, lm.generate(prompt, max_new_tokens=min(_CONTINUATION, limit), **options)


def _find_sentence(text: str) -> str:
    """Return the first sentence of 5 to 30 words, which is probably not a heading.

    If there is none, returns the first longer sentence. If there is none either, returns the whole
    text.

    >>> _find_sentence("Spring\\nMeng Haoran\\nI slept and did not know it was dawn. Birds sang.")
    'I slept and did not know it was dawn.'
    """
    sentences = [_normalize_spaces(match[0]) for match in _SENTENCE.finditer(text)]
    sizes = {sentence: len(split_words(sentence)) for sentence in sentences}
    long = next((s for s in sentences if sizes[s] > _MAX_WORDS), _normalize_spaces(text))
    return next((s for s in sentences if _MIN_WORDS <= sizes[s] <= _MAX_WORDS), long)


def _normalize_spaces(text: str) -> str:
    """Join the text into one line with single spaces, and none between Chinese characters."""
    return join_words(text.split())[0]


def _find_first_words(text: str, count: int) -> list[re.Match[str]]:
    """Return the regex matches of the first `count` words of a text."""
    return list(itertools.islice(WORD.finditer(text), count))
