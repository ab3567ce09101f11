"""Tokenizers: training, loading, encoding and vocabularies. Nothing here imports torch."""

from trivium.text.encoding import Encoding
from trivium.text.tokenizer import Tokenizer
from trivium.text.trainers import TokenizerConfig
from trivium.text.vocabulary import Vocabulary

__all__ = ["Encoding", "Tokenizer", "TokenizerConfig", "Vocabulary"]
