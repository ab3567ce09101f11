"""Whole-word tokenizer: the vocabulary is the most frequent words; all other words are unknown."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import models, pre_tokenizers, trainers

from trivium.messages import translated
from trivium.text.roles import TEXT_SPECIALS
from trivium.text.symbols import is_unspaced
from trivium.text.trainers import SpecialTokens, TokenizerConfig


class Whitespace(TokenizerConfig):
    """Whole-word tokenizer. Words are separated by spaces, and rare words become unknown tokens."""

    kind: Literal["whitespace"] = "whitespace"
    component_types: ClassVar[tuple[str, ...]] = ("WordLevel",)
    special_tokens: SpecialTokens = TEXT_SPECIALS
    min_frequency: int = Field(1, ge=1, description="minimum frequency of a word")

    def train_backend(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Train a whole-word tokenizer on texts: collect the most frequent words."""
        backend = tokenizers.Tokenizer(models.WordLevel(unk_token=self.unknown_token))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer, frequency = trainers.WordLevelTrainer, self.min_frequency
        self.run_trainer(backend, trainer, texts, space_before_words=False, min_frequency=frequency)
        return backend

    def make_hints(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return a hint to use another kind of tokenizer if the text has few spaces, otherwise ().

        This is the case if at least half of its first characters are from a script without spaces,
        such as Chinese, Japanese or Thai.
        """
        start = "".join(itertools.islice(itertools.chain.from_iterable(texts), 10_000))
        if 2 * sum(map(is_unspaced, start)) < len(start):
            return ()
        return (translated("tokenizer.few_spaces"),)
