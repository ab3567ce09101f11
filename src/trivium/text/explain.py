"""A look inside: how each kind of tokenizer learns and encodes, in plain Python.

The implementations are for small texts and for reading; tests hold them against the libraries.
Every result is a frozen dataclass with `to_dict()` for JSON and `render()` for people.
"""

from __future__ import annotations

from trivium.text.explain_bpe import (
    BPEEncoding,
    BPETraining,
    encode_bpe,
    explain_bpe_encoding,
    train_bpe,
)
from trivium.text.explain_bytes import TextBytes, explain_bytes
from trivium.text.explain_unigram import (
    Lattice,
    explain_lattice,
    explain_unigram_encoding,
)
from trivium.text.explain_unigram_training import UnigramTraining, train_unigram
from trivium.text.explain_wordpiece import (
    WordPieceMatching,
    explain_wordpiece_encoding,
    match_wordpiece,
)

__all__ = [
    "BPEEncoding",
    "BPETraining",
    "Lattice",
    "TextBytes",
    "UnigramTraining",
    "WordPieceMatching",
    "encode_bpe",
    "explain_bpe_encoding",
    "explain_bytes",
    "explain_lattice",
    "explain_unigram_encoding",
    "explain_wordpiece_encoding",
    "match_wordpiece",
    "train_bpe",
    "train_unigram",
]
