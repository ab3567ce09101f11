"""Batches in host memory: an objective converts a `RowBatch` to a `Batch`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

IGNORE_INDEX = -100
"""The label of positions that the loss ignores, as in `torch.nn.functional.cross_entropy`."""
PAD_TO_MULTIPLE_OF = 8
"""Sequence lengths and row counts are padded to a multiple of this number, so that shapes repeat.

New shapes are slow. On a CPU, oneDNN generates a kernel for every new shape of a bfloat16 matmul;
this takes longer than the matmul itself. Compiled models are recompiled for new shapes.
"""


def round_up(length: int, multiple: int = PAD_TO_MULTIPLE_OF) -> int:
    """Return the smallest multiple of `multiple` that is at least `length`.

    >>> round_up(13), round_up(16)
    (16, 16)
    """
    return length + -length % multiple


@dataclasses.dataclass(frozen=True, slots=True)
class _ArrayBatch:
    """Base class of batches: numpy arrays with B rows each.

    All fields except `input_ids` may be None.
    """

    input_ids: Ints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by field name, without the fields that are None."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: array for name, array in named if array is not None}

    def slice_rows(self, start: int, stop: int) -> Self:
        """Return a batch with the rows from `start` to `stop` - 1. Its arrays are views."""
        return type(self)(**{name: array[start:stop] for name, array in self.arrays().items()})

    @property
    def num_rows(self) -> int:
        """B, the number of rows."""
        return len(self.input_ids)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch(_ArrayBatch):
    """Model inputs and labels. All fields except `input_ids` may be None.

    Shape letters: B rows, T input positions, S decoder positions, M predicted positions, L labels.
    Arrays contain integers unless stated otherwise. For pairs of sequences, the shape [B, T]
    becomes [B, 2, T].

    Args:
        input_ids: [B, T], the token ids.
        attention_mask: [B, T], 1 for tokens and 0 for padding.
        token_type_ids: [B, T], 0 for sentence A and 1 for sentence B.
        position_ids: [B, T], or [B, T, 2] for models with two positions per token.
        document_ids: [B, T], the number of the document in the packed row (1, 2, ...); 0 for
            padding.
        order: [B, T], the position of each token in the prediction order (XLNet); 0 for tokens that
            are visible before the first prediction.
        predicted: [B, M], the columns to predict. If set, `labels` are [B, M].
        prefix_lengths: [B], the length of the prefix that is visible to all tokens of a row.
        decoder_input_ids: [B, S], the token ids of the decoder.
        decoder_attention_mask: [B, S], 1 for tokens and 0 for padding.
        labels: [B, T], or [B, S] if there are decoder inputs; `IGNORE_INDEX` at positions that the
            loss ignores.
        sequence_labels: labels of whole sequences: classes [B], regression targets [B], L binary
            labels [B, L], or the first and last position of an answer [B, 2].
    """

    attention_mask: NDArray[Any] | None = None
    token_type_ids: Ints | None = None
    position_ids: Ints | None = None
    document_ids: Ints | None = None
    order: Ints | None = None
    predicted: Ints | None = None
    prefix_lengths: Ints | None = None
    decoder_input_ids: Ints | None = None
    decoder_attention_mask: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    sequence_labels: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for name, array in self.arrays().items():
            assert len(array) == len(self.input_ids), f"{name} has another number of rows"

    @property
    def num_tokens(self) -> int:
        """The number of positions of `input_ids` that are not padding."""
        real = self.document_ids if self.attention_mask is None else self.attention_mask
        return self.input_ids.size if real is None else int(np.count_nonzero(real))

    @property
    def num_labels(self) -> int:
        """The number of labelled positions, or of rows if the labels are those of sequences."""
        if self.labels is None:
            return 0 if self.sequence_labels is None else self.num_rows
        return int(np.count_nonzero(self.labels != IGNORE_INDEX))


@dataclasses.dataclass(frozen=True, slots=True)
class RowBatch(_ArrayBatch):
    """Rows of token shards, or encoded examples. `Objective.prepare` converts them to a `Batch`.

    Batches of encoded examples may also contain the other fields, which `Batch` describes.

    Args:
        input_ids: int64 [B, T], or [B, 2, T] for pairs, padded on the right.
        lengths: int64 [B] or [B, 2], the number of tokens in each sequence, without padding.
        document_ids: int64 [B, T] as in `Batch`; only if `Rows.take` is called `with_documents`.
        first_documents: int64 [B], the index of the first document of each row in its split.
        decoder_lengths: int64 [B] or [B, 2], the number of decoder tokens, without padding.
    """

    lengths: Ints
    document_ids: Ints | None = None
    first_documents: Ints | None = None
    token_type_ids: Ints | None = None
    position_ids: Ints | None = None
    decoder_input_ids: Ints | None = None
    decoder_lengths: Ints | None = None
    labels: Ints | None = None
    sequence_labels: NDArray[Any] | None = None

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding, including decoder tokens."""
        decoder = 0 if self.decoder_lengths is None else int(self.decoder_lengths.sum())
        return int(self.lengths.sum()) + decoder

    @property
    def attention_mask(self) -> Ints | None:
        """The attention mask, int64 [B, T], 1 for tokens and 0 for padding.

        None if there is no padding, or if `document_ids` serve as the mask.
        """
        if self.document_ids is not None:
            return None
        return make_length_mask(self.lengths, self.input_ids.shape[-1])

    def to_batch(self) -> Batch:
        """Convert the rows to a `Batch` with an attention mask, the input of a model."""
        arrays = self.arrays()
        for name in ("lengths", "decoder_lengths", "first_documents"):
            arrays.pop(name, None)
        return Batch(**arrays, attention_mask=self.attention_mask)


def make_length_mask(lengths: Ints, num_columns: int) -> Ints | None:
    """Return the attention mask of rows padded on the right: 1 for tokens and 0 for padding.

    Args:
        lengths: int64 [B], or [B, 2] for pairs, the number of tokens in each sequence.
        num_columns: T, the padded length.

    Returns:
        The mask, int64 [B, T] or [B, 2, T]; None if there is no padding.
    """
    if not len(lengths) or lengths.min() == num_columns:
        return None
    return (np.arange(num_columns) < lengths[..., None]).astype(np.int64)
