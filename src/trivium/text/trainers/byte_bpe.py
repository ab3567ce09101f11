"""Byte-level BPE (Radford et al. 2019, GPT-2), which has no unknown tokens.

Decoding restores a text exactly, unless the text contains the name of a special token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from trivium.text.roles import END_OF_TEXT
from trivium.text.trainers import SpecialTokens, TokenizerConfig


class ByteBPE(TokenizerConfig):
    """Byte-level BPE: merges of bytes, without an unknown token."""

    kind: Literal["byte-bpe"] = "byte-bpe"
    component_types: ClassVar[tuple[str, ...]] = ("BPE", "ByteLevel")
    special_tokens: SpecialTokens = (END_OF_TEXT,)
    min_frequency: int = Field(2, ge=1, description="minimum frequency of a pair to be merged")

    def train_backend(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Train a byte-level BPE tokenizer on texts: learn the merges of bytes."""
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.run_trainer(
            backend,
            trainers.BpeTrainer,
            texts,
            min_frequency=self.min_frequency,
            initial_alphabet=alphabet,
        )
        return backend
