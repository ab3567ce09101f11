"""Byte-pair encoding on characters (Sennrich et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from trivium.text.roles import TEXT_SPECIALS
from trivium.text.trainers import CharacterTokenizerConfig, SpecialTokens


class BPE(CharacterTokenizerConfig):
    """Merges of characters. A space is U+2581 before the word; punctuation and line ends are apart.

    Source: Sennrich et al. 2016; the space symbol is sentencepiece's.
    """

    kind: Literal["bpe"] = "bpe"
    component_types: ClassVar[tuple[str, ...]] = ("BPE",)
    special_tokens: SpecialTokens = TEXT_SPECIALS
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to be merged")

    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Learn merges."""
        backend = tokenizers.Tokenizer(models.BPE(unk_token=self.unknown_token, fuse_unk=True))
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(prepend_scheme="first"),
                pre_tokenizers.Split(Regex(r"[\r\n]+"), behavior="isolated"),
                pre_tokenizers.Punctuation(),
            ]
        )
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        texts, alphabet = self.cover(texts, backend.normalizer)
        self.run_trainer(
            backend,
            trainers.BpeTrainer,
            texts,
            min_frequency=self.min_frequency,
            initial_alphabet=alphabet,
        )
        return backend
