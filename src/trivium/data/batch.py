"""The two batches on the host: `RowBatch` goes into an objective, `Batch` comes out of it."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

IGNORE_INDEX = -100
"""The label of a position without loss, as in `torch.nn.functional.cross_entropy`."""
PAD_TO_MULTIPLE_OF = 8
"""Padded lengths and numbers of rows are multiples of it where possible, so that shapes repeat.

For every new shape of a product in bfloat16 oneDNN generates a kernel on a CPU, which takes longer
than the product; compiled models are compiled again.
"""


def padded_length(length: int, multiple: int = PAD_TO_MULTIPLE_OF) -> int:
    """The next multiple.

    >>> padded_length(13), padded_length(16)
    (16, 16)
    """
    return length + -length % multiple


@dataclasses.dataclass(frozen=True, slots=True)
class _Arrays:
    """Arrays of the same rows, some of which may be absent."""

    input_ids: Ints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are present, by field name, in the order of the fields."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: array for name, array in named if array is not None}

    def rows(self, start: int, stop: int) -> Self:
        """Rows `start` up to `stop`, as views."""
        return type(self)(**{name: array[start:stop] for name, array in self.arrays().items()})

    @property
    def num_rows(self) -> int:
        """Rows B."""
        return len(self.input_ids)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch(_Arrays):
    """Model inputs and labels; all but `input_ids` may be absent.

    Integer arrays [B, T], the `decoder_` ones [B, S]; of pairs of sequences [B, 2, T]. `labels`
    [B, T] (or [B, S] with a decoder) are those of positions, `IGNORE_INDEX` where there is no loss;
    `sequence_labels` those of whole sequences: classes [B], numbers [B], several yes-or-no labels
    [B, L], or the start and end of an answer [B, 2]. Masks are 1 at real tokens. `token_type_ids`
    is sentence A or B; `document_ids` is the document of a packed row (1, 2, ...; 0 is padding).
    `order` [B, T] says when tokens become known, `predicted` [B, M] which columns are; labels are
    then [B, M]. `position_ids` are [B, T, 2] where positions are of two numbers; `prefix_lengths`
    [B] is how many first tokens of a decoder are seen by all.
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
        """Positions of `input_ids` that are not padding."""
        real = self.document_ids if self.attention_mask is None else self.attention_mask
        return self.input_ids.size if real is None else int(np.count_nonzero(real))

    @property
    def num_labels(self) -> int:
        """Positions that carry loss, or rows where these have labels alone."""
        if self.labels is None:
            return 0 if self.sequence_labels is None else self.num_rows
        return int(np.count_nonzero(self.labels != IGNORE_INDEX))


@dataclasses.dataclass(frozen=True, slots=True)
class RowBatch(_Arrays):
    """Rows of token shards, or encoded examples: what `Objective.prepare` starts from.

    `input_ids` int64 [B, T], or [B, 2, T] of pairs, padded on the right; `lengths` int64 [B] or
    [B, 2], the real tokens of each row. `document_ids` as in `Batch`, where `take` was called so,
    with `first_documents` int64 [B], the number in the split of each row's document 1. Encoded
    examples may have the other fields of `Batch`, with `decoder_lengths` int64 [B] or [B, 2] for
    the tokens of `decoder_input_ids`.
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
        """Real tokens of all rows, those of the decoder included."""
        decoder = 0 if self.decoder_lengths is None else int(self.decoder_lengths.sum())
        return int(self.lengths.sum()) + decoder

    @property
    def attention_mask(self) -> Ints | None:
        """int64 [B, T], 1 at real tokens; None without padding, or where documents mask it."""
        if self.document_ids is not None:
            return None
        return length_mask(self.lengths, self.input_ids.shape[-1])

    def to_batch(self) -> Batch:
        """The rows as they are, with the attention mask their lengths give."""
        arrays = self.arrays()
        for name in ("lengths", "decoder_lengths", "first_documents"):
            arrays.pop(name, None)
        return Batch(**arrays, attention_mask=self.attention_mask)


def length_mask(lengths: Ints, width: int) -> Ints | None:
    """int64 [B, width], 1 at the first `lengths` columns of each row; None where all are 1."""
    if not len(lengths) or lengths.min() == width:
        return None
    return (np.arange(width) < lengths[..., None]).astype(np.int64)
