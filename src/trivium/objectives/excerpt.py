"""Beginnings of texts in any language, for samples and for the command shown after a run."""

from __future__ import annotations

import itertools
import re
from typing import Any

from trivium.inference.text_model import prompt_ids
from trivium.language_model import LanguageModel
from trivium.text.inputs import join_words
from trivium.text.symbols import UNSPACED, WORD

_CONTINUATION = 40  # tokens

# After a Chinese character a full stop of ASCII ends a heading of the bundled text.
_SENTENCE = re.compile(
    rf"[^\n\u3002\uff01\uff1f]+?(?:[\u3002\uff01\uff1f]|(?<!{UNSPACED.pattern})[.!?](?=\s|$))"
)
_FEWEST, _MOST = 5, 30  # words of a sentence that is shown


def split_words(text: str) -> list[str]:
    """The words of a text, Chinese and Japanese characters one by one.

    >>> split_words("to be \u4f60\u597d!")
    ['to', 'be', '\u4f60', '\u597d', '!']
    """
    return WORD.findall(text)


def beginning(text: str, count: int) -> str:
    """Return the first words of a text's first sentence."""
    text = _first_sentence(text)
    return text[: max((word.end() for word in _first_words(text, count)), default=0)]


def mask_middle(
    text: str, mask: str, *, words: int = _MOST, span: int = 1
) -> tuple[str, str] | None:
    """The first sentence of a text with the words in its middle masked, and these words.

    None where it has too few words.

    >>> mask_middle("it was a dark and stormy night", "[MASK]")
    ('it was a [MASK] and stormy night', 'dark')
    """
    text = _first_sentence(text)
    shown = _first_words(text, words)
    if len(shown) < span + 2:
        return None
    middle = (len(shown) + 1 - span) // 2
    # No punctuation mark, if there is something else to predict.
    lettered = (i for i in range(middle, len(shown) - span) if shown[i][0][0].isalnum())
    first = next(lettered, middle)
    start, stop = shown[first].start(), shown[first + span - 1].end()
    return text[:start] + mask + text[stop : shown[-1].end()], text[start:stop]


def continue_beginning(
    lm: LanguageModel, text: str, words: int, **options: Any
) -> tuple[str, str] | None:
    """The first words of a text, and how the model goes on within the length it was trained on."""
    prompt = beginning(text, words)
    limit = (lm.trained_length or 1 << 30) - len(prompt_ids(lm, prompt))
    if limit < 1:
        return None
    return prompt, lm.generate(prompt, max_new_tokens=min(_CONTINUATION, limit), **options)


def _first_sentence(text: str) -> str:
    """The first sentence within a line, no heading and if possible short; else the whole text.

    >>> _first_sentence("Spring\\nMeng Haoran\\nI slept and did not know it was dawn. Birds sang.")
    'I slept and did not know it was dawn.'
    """
    sentences = [_on_one_line(match[0]) for match in _SENTENCE.finditer(text)]
    sizes = {one: len(split_words(one)) for one in sentences}
    long = next((one for one in sentences if sizes[one] > _MOST), _on_one_line(text))
    return next((one for one in sentences if _FEWEST <= sizes[one] <= _MOST), long)


def _on_one_line(text: str) -> str:
    """The text with single spaces; none between Chinese characters, where decoding puts them."""
    return join_words(text.split())[0]


def _first_words(text: str, count: int) -> list[re.Match[str]]:
    return list(itertools.islice(WORD.finditer(text), count))
