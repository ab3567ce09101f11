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
    """Byte-pair encoding on characters. U+2581 stands for the space before a word.

    Punctuation and line ends are never merged with words. Spaces are kept, also at the start of a
    text, so that " x" and "x" have different ids.

    Source: Sennrich et al. 2016; the space symbol is from sentencepiece.
    """

    kind: Literal["bpe"] = "bpe"
    component_types: ClassVar[tuple[str, ...]] = ("BPE",)
    special_tokens: SpecialTokens = TEXT_SPECIALS
    min_frequency: int = Field(2, ge=1, description="minimum frequency of a pair to be merged")

    def train_backend(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Train a BPE tokenizer on texts: learn the merges of characters."""
        backend = tokenizers.Tokenizer(models.BPE(unk_token=self.unknown_token, fuse_unk=True))
        backend.normalizer = normalizers.NFC() if self.normalize else normalizers.Sequence([])
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                # U+2581 is prepended to a text even if the text begins with a space. Metaspace does
                # not prepend its symbol to a text that begins with it. Therefore the first step
                # writes spaces as U+2581, the second step prepends a space, and the third step
                # writes that space as U+2581, too, and splits. normalizers.Prepend would also
                # prepend a symbol after every special token.
                pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
                pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False),
                pre_tokenizers.Metaspace(prepend_scheme="never"),
                pre_tokenizers.Split(Regex(r"[\r\n]+"), behavior="isolated"),
                pre_tokenizers.Punctuation(),
            ]
        )
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        texts, alphabet = self.choose_alphabet(texts, backend.normalizer)
        self.run_trainer(
            backend,
            trainers.BpeTrainer,
            texts,
            min_frequency=self.min_frequency,
            initial_alphabet=alphabet,
        )
        return backend
