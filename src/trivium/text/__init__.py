"""Tokenizers: train, load, encode, and look inside. Nothing here imports torch.

A kind of tokenizer is one module with one configuration class; `AnyTokenizerConfig` lists them.
"""

from typing import Annotated, get_args

from pydantic import Field

from trivium.text.bpe import BPE
from trivium.text.byte_bpe import ByteBPE
from trivium.text.encoding import Encoding
from trivium.text.tokenizer import Tokenizer
from trivium.text.trainers import TokenizerConfig
from trivium.text.unigram import Unigram
from trivium.text.vocabulary import Vocabulary
from trivium.text.whitespace import Whitespace
from trivium.text.wordpiece import WordPiece

AnyTokenizerConfig = Annotated[
    Whitespace | BPE | ByteBPE | Unigram | WordPiece, Field(discriminator="kind")
]
KINDS: tuple[str, ...] = tuple(
    config.model_fields["kind"].default for config in get_args(get_args(AnyTokenizerConfig)[0])
)

__all__ = [
    "BPE",
    "KINDS",
    "AnyTokenizerConfig",
    "ByteBPE",
    "Encoding",
    "Tokenizer",
    "TokenizerConfig",
    "Unigram",
    "Vocabulary",
    "Whitespace",
    "WordPiece",
]
