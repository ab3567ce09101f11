"""NumPy operations on rows of token ids, which objectives use to prepare batches on the host.

Shape letters: B rows, T tokens per row.
"""

from __future__ import annotations

import math

import numpy as np

from trivium.data.batch import Bools, Floats, Ints, RowBatch


def token_mask(rows: RowBatch) -> np.ndarray:
    """Return a mask of the rows, bool [B, T]: True for tokens, False for padding."""
    return np.arange(rows.input_ids.shape[1]) < rows.lengths[:, None]


def left_pack(ids: Ints, keep: Bools, fill: int) -> tuple[Ints, Ints]:
    """Remove some token ids from every row, move the rest to the left, and pad with `fill`.

    Args:
        ids: token ids, int64 [B, T].
        keep: True for the ids to keep, bool [B, T].
        fill: the padding id.

    Returns:
        The packed rows, int64 [B, S], and the number of kept ids in each row, int64 [B]. S is the
        maximum number of kept ids per row.

    >>> left_pack(np.array([[5, 6, 7], [8, 9, 9]]), np.array([[1, 0, 1], [0, 1, 0]], dtype=bool), 0)
    (array([[5, 7],
           [9, 0]]), array([2, 1]))
    """
    sizes = keep.sum(axis=1)
    columns = np.arange(sizes.max(initial=0))
    rows = np.full((len(ids), len(columns)), fill, dtype=np.int64)
    rows[columns < sizes[:, None]] = ids[keep]
    return rows, sizes


def poisson_probabilities(mean: float, lengths: range) -> Floats:
    """Return the Poisson probability of each length in `lengths`, given the mean."""
    return np.exp([n * math.log(mean) - mean - math.lgamma(n + 1) for n in lengths])


def attention_inputs(rows: RowBatch) -> dict[str, np.ndarray | None]:
    """Return the model inputs that determine the attention mask and the position of each token.

    For packed documents these are `document_ids` and `position_ids`, otherwise the padding mask
    `attention_mask`.
    """
    if rows.document_ids is None:
        return {"attention_mask": rows.attention_mask}
    positions = positions_in_documents(rows.document_ids)
    return {"document_ids": rows.document_ids, "position_ids": positions}


def positions_in_documents(document_ids: np.ndarray) -> np.ndarray:
    """Return position ids that restart at 0 in every document of a row, int64 [B, T].

    >>> positions_in_documents(np.array([[1, 1, 2, 2, 2]]))
    array([[0, 1, 0, 1, 2]])
    """
    column = np.arange(document_ids.shape[1])
    starts = np.diff(document_ids, axis=1, prepend=-1) != 0
    return column - np.maximum.accumulate(np.where(starts, column, 0), axis=1)
