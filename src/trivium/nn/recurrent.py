"""Recurrent layers: PyTorch's own cells, texts told apart in a batch, and states as a cache.

Shape letters: B batch, T positions, M real positions, N texts, L longest text, D inputs, C cells,
W width of what a position says (C, or 2 C where layers read both ways).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from trivium import spec

State = tuple[Tensor, ...]

_CELLS: dict[str, type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]] = {
    "elman": nn.RNN,
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}


@dataclass(frozen=True)
class Texts:
    """Where the texts of a batch stand: those of packed rows, those beside padding.

    Args:
        flat: int64 [M], the real positions in B * T, row by row.
        text: int64 [M], which text each belongs to.
        place: int64 [M], where in its text.
        lengths: int64 [N], on the CPU.
        rows: int64 [N], the row of each text.
    """

    flat: Tensor
    text: Tensor
    place: Tensor
    lengths: Tensor
    rows: Tensor

    @classmethod
    def find(cls, real: Tensor, document_ids: Tensor | None) -> Texts:
        """From the real positions, bool [B, T], and the documents they belong to, [B, T].

        A position that is not real stands in no text; those around it are neighbours.
        """
        flat = real.flatten().nonzero()[:, 0]
        row = flat // real.shape[1]
        begins = torch.ones_like(flat, dtype=torch.bool)
        begins[1:] = row[1:] != row[:-1]
        if document_ids is not None:
            document = document_ids.flatten()[flat]
            begins[1:] |= document[1:] != document[:-1]
        starts = begins.nonzero()[:, 0]
        text = begins.cumsum(0) - 1
        place = torch.arange(len(flat), device=flat.device) - starts[text]
        lengths = torch.bincount(text, minlength=len(starts)).cpu()
        return cls(flat, text, place, lengths, row[starts])

    def split(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [N, L, D], each text from the left, zeros after its end."""
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        apart = x.new_zeros(len(self.lengths), longest, x.shape[2])
        apart[self.text, self.place] = x.flatten(0, 1)[self.flat]
        return apart

    def join(self, apart: Tensor, rows: int, length: int) -> Tensor:
        """[N, L, W] -> [B, T, W], zeros where no text is."""
        x = apart.new_zeros(rows * length, apart.shape[2])
        x[self.flat] = apart[self.text, self.place]
        return x.view(rows, length, -1)

    def turned(self, apart: Tensor) -> Tensor:
        """Every text from its end to its beginning: [N, L, D] -> [N, L, D]."""
        back = self.lengths.to(self.text.device)[self.text] - 1 - self.place
        turned = torch.zeros_like(apart)
        turned[self.text, self.place] = apart[self.text, back]
        return turned


def find_texts(
    input_ids: Tensor, attention_mask: Tensor | None, document_ids: Tensor | None
) -> Texts | None:
    """The texts of a batch [B, T], None where every row is one text from end to end.

    A mask that is wider than the batch covers what was read before it, which is left out.
    """
    if attention_mask is None and document_ids is None:
        return None
    length = input_ids.shape[1]
    real = torch.ones_like(input_ids, dtype=torch.bool)
    if attention_mask is not None:
        real = real & attention_mask[:, -length:].bool()
    if document_ids is not None:
        real = real & (document_ids != 0)
    return Texts.find(real, document_ids)


class RecurrentLayers(nn.Module):
    """h_t = f(x_t, h_t-1), layer upon layer; with "both", each reads both ways and joins them.

    Elman: tanh(W x + U h + b) (Elman 1990); LSTM with a forget gate (Gers et al. 1999); GRU with
    the reset gate after the product with U (Cho et al. 2014, in the form that cuDNN computes).
    """

    def __init__(self, rnn: spec.RNNSpec) -> None:
        super().__init__()
        layers = rnn.num_layers
        self.cells = _CELLS[rnn.cell](
            rnn.d_model,
            rnn.d_hidden,
            layers,
            batch_first=True,
            dropout=rnn.dropout if layers > 1 else 0.0,
            bidirectional=rnn.direction == "both",
        )

    def forward(
        self,
        x: Tensor,
        *,
        texts: Texts | None = None,
        backwards: bool = False,
        cache: RecurrentCache | None = None,
    ) -> Tensor:
        """What every position says: [B, T, D] -> [B, T, W].

        Args:
            texts: where they stand; each begins with a state of zeros. None: one a row.
            backwards: read every text from its end.
            cache: states to go on from, one a row, replaced by those after the last position.
        """
        if texts is None:
            said, state = self._run(x.flip(1) if backwards else x, cache.state if cache else None)
            if cache is not None:
                cache.state = state
            return said.flip(1) if backwards else said
        rows, length = x.shape[:2]
        apart = texts.split(x)
        apart = texts.turned(apart) if backwards else apart
        packed = pack_padded_sequence(apart, texts.lengths, batch_first=True, enforce_sorted=False)
        before = cache.take(texts.rows) if cache else None
        said, state = self._run(packed, before)
        if cache is not None:
            cache.put(texts.rows, state)
        apart, _ = pad_packed_sequence(said, batch_first=True)
        return texts.join(texts.turned(apart) if backwards else apart, rows, length)

    def _run(self, x: Any, before: State | None) -> tuple[Any, State]:
        lstm = isinstance(self.cells, nn.LSTM)
        given = None if before is None else (before if lstm else before[0])
        said, state = self.cells(x, given)
        return said, state if lstm else (state,)


class RecurrentCache:
    """The states after the tokens read so far: one tensor [layers, B, C], two in an LSTM.

    Args:
        batch: rows.
        max_length: where the caller stops; a state needs no more room for more tokens.
    """

    def __init__(self, batch: int, max_length: int) -> None:
        self.batch, self.max_length = batch, max_length
        self.length = 0
        self.state: State | None = None

    def can_shorten(self, tokens: int) -> bool:
        """Whether rows may go back by so many tokens: a state knows no way back."""
        return tokens == 0

    def make_room(self, max_length: int, rows: int = 0) -> None:
        """Allow texts of this many tokens, and more rows."""
        self.max_length = max(self.max_length, max_length)

    def join(self, other: RecurrentCache, lengths: Sequence[int]) -> None:
        """Take over the rows of another cache, of `lengths` tokens."""
        states = (self.state, other.state) if self.batch else (other.state,)
        parts = zip(*(state for state in states if state is not None), strict=True)
        self.state = tuple(torch.cat(pair, 1) for pair in parts)
        self.batch += len(lengths)
        self.length = max(self.length, *lengths)

    def leave(self, row: int) -> None:
        """Drop a row; the last one takes its place."""
        rows = list(range(self.batch - 1))
        if row < len(rows):
            rows[row] = self.batch - 1
        self.reorder(torch.tensor(rows, dtype=torch.int64))

    def take(self, rows: Tensor) -> State | None:
        """The states of some rows, None before the first token."""
        return None if self.state is None else tuple(part[:, rows] for part in self.state)

    def put(self, rows: Tensor, state: State) -> None:
        """Keep the new states of some rows; the others stay as they are."""
        if self.state is None:
            self.state = tuple(
                part.new_zeros(len(part), self.batch, part.shape[2]) for part in state
            )
        self.state = tuple(
            old.index_copy(1, rows, new) for old, new in zip(self.state, state, strict=True)
        )

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: int64 [B]."""
        self.batch, self.state = len(rows), self.take(rows)
