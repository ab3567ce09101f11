"""Byte-level BPE as in GPT-2 (Radford et al. 2019), which has no unknown tokens.

Decoding the ids of a text restores the text exactly, unless it contains a special-token name.
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
    """Byte-pair encoding on bytes. It needs no unknown token."""

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
