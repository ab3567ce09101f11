"""What the heads of a model are given, whatever kind of model it is."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.spec.parts import Norm


@dataclass(frozen=True)
class HeadInput:
    """The sizes and parts that follow from a model and that its heads are made with.

    Args:
        vocab_size: entries of the vocabulary.
        d_model: width of the hidden states that a head reads.
        d_embedding: width of the vectors that meet the vocabulary's matrix.
        narrows: whether an LM head multiplies its way from d_model to d_embedding.
        norm: the norm of a head that has one; None where the model has none to share.
        dropout: before a head's last projection.
    """

    vocab_size: int
    d_model: int
    d_embedding: int
    narrows: bool
    norm: Norm | None
    dropout: float
