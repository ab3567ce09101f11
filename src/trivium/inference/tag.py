"""Token classification: a tag for every word (named entities, parts of speech)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trivium.errors import shorten
from trivium.inference.forward import hidden_states
from trivium.inference.text_model import TextModel
from trivium.text.inputs import encode_words
from trivium.text.symbols import is_unspaced

# Characters of a Chinese word; a few names written by their sound are longer.
_LONGEST_WORD = 6


@dataclass(frozen=True, slots=True)
class TaggedWord:
    """A word, its most probable tag and that tag's probability."""

    word: str
    tag: str
    score: float


def spaced_words(text: str) -> list[str]:
    """The words of a text, which spaces separate; a warning where its script has none."""
    words = text.split()
    if any(len(word) > _LONGEST_WORD and any(map(is_unspaced, word)) for word in words):
        warnings.warn(
            f'"{shorten(text, 40)}" has no spaces between its words, each of which gets one tag: '
            "put spaces between words and punctuation marks first, for instance with jieba, or "
            "give a list of words.",
            stacklevel=4,
        )
    return words


@torch.inference_mode()
def tag_words(
    lm: TextModel,
    sentences: Sequence[Sequence[str]],
    names: Sequence[str],
    *,
    max_length: int | None,
) -> list[list[TaggedWord]]:
    """The tag of every word, predicted at its first token.

    Args:
        sentences: words of each.
        names: of the tagger's labels.
        max_length: sentences of more tokens are read in several parts.
    """
    tagged: list[list[TaggedWord]] = [[] for _ in sentences]
    encoded = encode_words(lm.source_tokenizer, sentences, max_length=max_length)
    parts = [(number, part) for number, of_one in enumerate(encoded) for part in of_one]
    tags: dict[int, list[tuple[float, int]]] = {}
    for batch, hidden, _ in hidden_states(lm, [part.ids for _, part in parts]):
        best = lm.module.logits(hidden, head="tagger").float().softmax(-1).max(-1)
        probabilities, labels = best.values.tolist(), best.indices.tolist()
        for row, index in enumerate(batch):
            first = parts[index][1].first_tokens
            tags[index] = [(probabilities[row][token], labels[row][token]) for token in first]
    for index, (sentence, part) in enumerate(parts):
        words = sentences[sentence][part.start : part.stop]
        tagged[sentence] += [
            TaggedWord(word, names[label], score)
            for word, (score, label) in zip(words, tags[index])
        ]
    return tagged
