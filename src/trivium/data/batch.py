"""What an objective hands to the model: one `Batch` of numpy arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LOSS = -100
"""The label of a position that carries no loss."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The arrays of one batch; all but `input_ids` may be absent.

    Shapes: integer arrays [B, T]; the `decoder_` ones [B, S]. `labels` are those of positions, -100
    where there is no loss; `text_labels` those of whole texts: classes [B], numbers [B], several
    yes-or-no answers [B, L], or the two ends of an answer [B, 2]. In the masks 1 (or True) is a
    real token.
    `token_type_ids` says sentence A or B; `document_ids` says which document of a packed row a
    token belongs to (1, 2, ...; 0 is padding).
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[Any] | None = None
    token_type_ids: NDArray[np.int64] | None = None
    position_ids: NDArray[np.int64] | None = None
    document_ids: NDArray[np.int64] | None = None
    decoder_input_ids: NDArray[np.int64] | None = None
    decoder_attention_mask: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    text_labels: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for name, array in self.arrays().items():
            assert len(array) == len(self.input_ids), f"{name} has another number of rows"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are present, by field name, in the order of the fields."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: array for name, array in named if array is not None}

    def rows(self, start: int, stop: int) -> Batch:
        """The micro-batch of rows `start` up to `stop`, as views."""
        return Batch(**{name: array[start:stop] for name, array in self.arrays().items()})

    @property
    def num_rows(self) -> int:
        """Rows B."""
        return len(self.input_ids)

    @property
    def num_labels(self) -> int:
        """Positions that carry loss; 0 where there are no labels."""
        return 0 if self.labels is None else int(np.count_nonzero(self.labels != NO_LOSS))
