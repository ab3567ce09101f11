"""Some positions of a batch, so that a last layer need not ask for the others.

Shape letters: B batch, T positions, M picked ones, P most picked of any row, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Picked:
    """Positions picked in every row, as a grid that attention can work on.

    Args:
        select: int64 [M], the positions in B * T, ascending.
        columns: int64 [B, P], those of each row; rows with fewer are filled up with position 0.
        places: int64 [M], where in B * P the picked ones stand.
    """

    select: Tensor
    columns: Tensor
    places: Tensor

    @classmethod
    def of(cls, select: Tensor, rows: int, length: int) -> Picked:
        """The grid of flat positions int64 [M] in a batch [B, T]. Waits for the device once."""
        row, column = select // length, select % length
        counts = torch.bincount(row, minlength=rows)
        before = counts.cumsum(0) - counts
        place = torch.arange(len(select), device=select.device) - before[row]
        most = int(counts.max()) if rows else 0
        columns = torch.zeros(rows, most, dtype=torch.int64, device=select.device)
        columns[row, place] = column
        return cls(select, columns, row * most + place)

    def stream(self, x: Tensor) -> Tensor:
        """The picked vectors: [B, T, D] -> [M, D]."""
        return x.flatten(0, 1).index_select(0, self.select)

    def grid(self, x: Tensor) -> Tensor:
        """The picked vectors of every row: [B, T, D] -> [B, P, D]."""
        starts = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
        picked = x.flatten(0, 1).index_select(0, (starts + self.columns).flatten())
        return picked.view(*self.columns.shape, x.shape[-1])

    def queries(self, x: Tensor) -> Tensor:
        """What stands for queries in the third axis: [1 or B, N, T, S] -> [B, N, P, S].

        One that all queries share, [B, N, 1, S], stays.
        """
        if x.shape[2] == 1:
            return x
        rows, most = self.columns.shape
        columns = self.columns[:, None, :, None].expand(rows, x.shape[1], most, x.shape[3])
        return x.expand(rows, *x.shape[1:]).gather(2, columns)

    def flat(self, x: Tensor) -> Tensor:
        """Out of the grid: [B, P, D] -> [M, D]."""
        return x.flatten(0, 1).index_select(0, self.places)
