"""Recurrent layers (RNN, LSTM, GRU) built from PyTorch modules, and the sequences of a batch.

Shape letters: B batch, T positions, M positions without padding, N sequences, D input width,
C hidden units (after the projection of an LSTM, if it has one), W output width (C, or 2 C in
bidirectional layers).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    unpack_sequence,
)

from trivium.errors import SpecError

CellState = tuple[Tensor, ...]
"""The states after the last token of N sequences, [layers, N, C]; (h, c) for an LSTM, else (h,)."""


class LogisticRNN(nn.RNN):
    """RNN with the logistic activation function, which `nn.RNN` does not support.

    h_t = 1 / (1 + exp(-(W x_t + U h_t-1 + b)))
    """

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """Return the outputs and the final hidden states [layers, N, C], like `nn.RNN.forward`.

        The input is a PackedSequence or a tensor [N, T, D], and the outputs have the same type.
        `hx` contains the initial hidden states; None: zeros.
        """
        x, lengths, is_token = input, None, None
        if isinstance(input, PackedSequence):
            x, lengths = pad_packed_sequence(input, batch_first=True)
            is_token = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]
        steps, after = range(x.shape[1]), list[Tensor]()
        for layer in range(self.num_layers):
            ways = []
            for suffix in ("", "_reverse")[: 1 + self.bidirectional]:
                inner, recurrent, bias, recurrent_bias = (
                    getattr(self, f"{name}_l{layer}{suffix}")
                    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                )
                read = F.linear(x, inner, bias + recurrent_bias)
                h = read.new_zeros(len(x), self.hidden_size) if hx is None else hx[len(after)]
                outputs: dict[int, Tensor] = {}
                for t in reversed(steps) if suffix else steps:
                    new = torch.sigmoid(read[:, t] + F.linear(h, recurrent))
                    # Padding does not change the hidden state.
                    outputs[t] = h = (
                        new if is_token is None else torch.where(is_token[:, t, None], new, h)
                    )
                ways.append(torch.stack([outputs[t] for t in steps], 1))
                after.append(h)
            x = torch.cat(ways, -1)
            if layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return x, torch.stack(after)


_CELLS: dict[str, Any] = {
    "elman": nn.RNN,
    "elman-relu": partial(nn.RNN, nonlinearity="relu"),
    "elman-logistic": LogisticRNN,
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}


@dataclass(frozen=True)
class Sequences:
    """The sequences of a batch, as indices of their tokens. Rows may be padded or packed.

    Args:
        flat: int64 [M], the indices of all tokens except padding in the flattened batch (B * T),
            sequence by sequence.
        lengths: the number of tokens of each of the N sequences.
        rows: int64 [N], the row of the batch that contains each sequence.
    """

    flat: Tensor
    lengths: list[int]
    rows: Tensor

    @classmethod
    def from_mask(cls, is_token: Tensor, document_ids: Tensor | None = None) -> Sequences:
        """Return the sequences of a batch, given the padding mask `is_token`, bool [B, T].

        `document_ids` [B, T] divides packed rows into sequences; None: each row is one sequence.
        Padding belongs to no sequence. Tokens directly before and after padding become adjacent.

        Raises:
            SpecError: all tokens are padding.
        """
        flat = is_token.flatten().nonzero()[:, 0]
        if not len(flat):
            raise SpecError("every token of the input is masked: leave one.")
        row = flat // is_token.shape[1]
        begins = torch.ones_like(flat, dtype=torch.bool)
        begins[1:] = row[1:] != row[:-1]
        if document_ids is not None:
            document = document_ids.flatten()[flat]
            begins[1:] |= document[1:] != document[:-1]
        starts = begins.nonzero()[:, 0]
        ends = torch.cat((starts[1:], starts.new_tensor([len(flat)])))
        return cls(flat, (ends - starts).tolist(), row[starts])


class RecurrentLayers(nn.Module):
    """A stack of recurrent layers, h_t = cell(x_t, h_t-1).

    The cells are Elman's, f(W x + U h + b) with f = tanh, relu or logistic (Elman 1990); an LSTM
    with a forget gate (Gers et al. 1999); and a GRU with the reset gate after the product with U
    (Cho et al. 2014, in the form that cuDNN computes). With direction "both", every layer is
    bidirectional.

    All layers are one PyTorch module. With residual connections or in a biLM (ELMo), each layer is
    a separate module, because the outputs of every layer are needed.
    """

    def __init__(self, rnn: Any) -> None:
        super().__init__()
        self.dropout, self.residual = rnn.dropout, rnn.connections == "residual"
        if rnn.d_projection:  # oneDNN has no projections, so PyTorch uses its own kernel
            warnings.filterwarnings("ignore", message="LSTM with projections")
        make = partial(
            _CELLS[rnn.cell], batch_first=True, bidirectional=rnn.direction == "both",
            **({"proj_size": rnn.d_projection} if rnn.d_projection else {}),
        )  # fmt: skip
        self.cells: nn.Module
        if self.residual or rnn.is_bilm:
            widths = rnn.d_model, *[rnn.d_layer_output] * (rnn.num_layers - 1)
            self.cells = nn.ModuleList(make(width, rnn.d_hidden, 1) for width in widths)
        else:
            dropout = rnn.dropout if rnn.num_layers > 1 else 0.0
            self.cells = make(rnn.d_model, rnn.d_hidden, rnn.num_layers, dropout=dropout)

    def layer_params(self) -> list[list[nn.Parameter]]:
        """Return one list of parameters per layer, which contains those of both directions."""
        layers = []
        for cells in self.modules():
            if isinstance(cells, nn.RNNBase):
                ways, size = cells.all_weights, 1 + cells.bidirectional
                layers += [list(chain(*ways[i : i + size])) for i in range(0, len(ways), size)]
        return layers

    def forward(self, x: Tensor, **options: Any) -> tuple[Tensor, CellState]:
        """Return the outputs [B, T, W] of the last layer, and the final states of all layers.

        `options` are the keyword arguments of `every_layer`.
        """
        outputs, after = self.every_layer(x, **options)
        return outputs[-1], after

    def every_layer(
        self,
        x: Tensor,
        *,
        sequences: Sequences | None = None,
        backward: bool = False,
        state: CellState | None = None,
    ) -> tuple[list[Tensor], CellState]:
        """Return the outputs [B, T, W] of every layer, and the states at the end of each sequence.

        Outputs at padding are zero. If all layers are one PyTorch module, the list contains only
        the outputs of the last layer.

        Args:
            x: the inputs, [B, T, D].
            sequences: the sequences of the batch; None: every row is one sequence.
            backward: whether sequences are processed from the end to the start.
            state: the initial states; None: zeros.
        """
        outputs, after = self._run_layers(_pack_sequences(x, sequences, backward=backward), state)
        return [_unpack_sequences(y, x, sequences, backward=backward) for y in outputs], after

    def _run_layers(self, x: Any, state: CellState | None) -> tuple[list[Any], CellState]:
        """Run the layers on packed or plain inputs. Returns their outputs and final states."""
        if not isinstance(self.cells, nn.ModuleList):
            y, after = _call_cells(self.cells, x, state)
            return [y], after
        outputs, states = [], []
        ways = 1 if state is None else len(state[0]) // len(self.cells)
        for number, cells in enumerate(self.cells):
            own = slice(ways * number, ways * (number + 1))
            if number:
                x = _replace_data(x, F.dropout(_get_data(x), self.dropout, self.training))
            y, after = _call_cells(
                cells, x, None if state is None else tuple(one[own] for one in state)
            )
            x = _replace_data(y, _get_data(x) + _get_data(y)) if self.residual and number else y
            outputs.append(x)
            states.append(after)
        return outputs, tuple(map(torch.cat, zip(*states)))


def _pack_sequences(x: Tensor, sequences: Sequences | None, *, backward: bool) -> Any:
    """Return inputs [B, T, D] as a PackedSequence, or as a tensor if `sequences` is None.

    With `backward`, each sequence is reversed.
    """
    if sequences is None:
        return x.flip(1) if backward else x
    parts = x.flatten(0, 1)[sequences.flat].split(sequences.lengths)
    if backward:
        parts = [part.flip(0) for part in parts]
    return pack_sequence(list(parts), enforce_sorted=False)


def _unpack_sequences(y: Any, x: Tensor, sequences: Sequences | None, *, backward: bool) -> Tensor:
    """Convert outputs `y` for packed inputs `x` back to a tensor [B, T, W], zero at padding.

    With `backward`, each sequence is reversed again. It is the inverse of `_pack_sequences`.
    """
    if sequences is None:
        return y.flip(1) if backward else y
    parts = unpack_sequence(y)
    if backward:
        parts = [part.flip(0) for part in parts]
    rows = y.data.new_zeros(x.shape[:2].numel(), y.data.shape[1])
    rows[sequences.flat] = torch.cat(parts)
    return rows.view(*x.shape[:2], -1)


def _call_cells(cells: nn.Module, x: Any, state: CellState | None) -> tuple[Any, CellState]:
    """Call a PyTorch RNN, LSTM or GRU. Returns its outputs and a tuple of its final states."""
    if isinstance(cells, nn.LSTM):
        return cells(x, state)
    y, after = cells(x, None if state is None else state[0])
    return y, (after,)


def _get_data(x: Tensor | PackedSequence) -> Tensor:
    """Return the data tensor of a PackedSequence; a plain tensor is returned unchanged."""
    return x.data if isinstance(x, PackedSequence) else x


def _replace_data(x: Any, data: Tensor) -> Any:
    """Return a PackedSequence `x` with other `data`, or `data` itself if `x` is a tensor."""
    return x._replace(data=data) if isinstance(x, PackedSequence) else data
