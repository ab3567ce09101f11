"""Tokenizers: train, load, encode, and look inside. Nothing here imports torch."""

from trivium.text.encoding import Encoding
from trivium.text.tokenizer import Tokenizer
from trivium.text.training import KINDS
from trivium.text.vocabulary import Vocabulary

__all__ = ["KINDS", "Encoding", "Tokenizer", "Vocabulary"]
