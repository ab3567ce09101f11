"""Whole-word tokenizer: the most frequent words between spaces; all other words are unknown."""

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
    """A vocabulary of whole words, separated by spaces."""

    kind: Literal["whitespace"] = "whitespace"
    component_types: ClassVar[tuple[str, ...]] = ("WordLevel",)
    special_tokens: SpecialTokens = TEXT_SPECIALS
    min_frequency: int = Field(1, ge=1, description="minimum frequency of a word")

    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Count the words. Returns the trained tokenizer."""
        backend = tokenizers.Tokenizer(models.WordLevel(unk_token=self.unknown_token))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer, frequency = trainers.WordLevelTrainer, self.min_frequency
        self.run_trainer(backend, trainer, texts, space_before_words=False, min_frequency=frequency)
        return backend

    def hints(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return advice to use another kind if most of the text is in a script without spaces."""
        start = "".join(itertools.islice(itertools.chain.from_iterable(texts), 10_000))
        if 2 * sum(map(is_unspaced, start)) < len(start):
            return ()
        return (translated("tokenizer.few_spaces"),)
