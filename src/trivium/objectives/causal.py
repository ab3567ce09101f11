"""Causal language modelling: every token is told from those before it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective, row_inputs, token_loss


@dataclass(frozen=True)
class Causal(TextObjective):
    """L = - sum_t log P(x_t | x_1 ... x_(t-1)).

        input_ids  once  upon  a     time
        labels     upon  a     time  -100

    The last position of a row has no label, nor has padding, nor the last token of a document
    where documents are kept apart. Source: Radford et al. 2018, equation 1.

    With `context` c a document is read in windows of c tokens, none of which sees another: a token
    is told from at least 1 and at most c tokens before it, on average (c + 1) / 2, and every label
    is kept. With c = 2, "time" is told from "a" alone:

        input_ids     once  upon  a     time
        document_ids  1     1     2     2
        position_ids  0     1     0     1

    This holds for every model. A sliding window in each layer would not: L layers of window w see
    L w tokens back.
    """

    context: int | None = None
    heads: tuple[str, ...] = ("lm",)

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Shift by one: int64 [B, T] -> input_ids and labels [B, T]."""
        labels = np.full_like(rows.input_ids, NO_LOSS)
        labels[:, :-1] = rows.input_ids[:, 1:]
        length = rows.input_ids.shape[1]
        labels[np.arange(length) >= rows.lengths[:, None] - 1] = NO_LOSS
        if rows.document_ids is not None:
            last = rows.document_ids[:, :-1] != rows.document_ids[:, 1:]
            labels[:, :-1][last] = NO_LOSS
        inputs = row_inputs(rows if self.context is None else _in_windows(rows, self.context))
        # Padding stands on the right, where causality alone hides it.
        inputs.pop("attention_mask", None)
        return Batch(input_ids=rows.input_ids, labels=labels, **inputs)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of every next token."""
        return token_loss(model, batch)


def _in_windows(rows: RowBatch, context: int) -> RowBatch:
    """The rows with every `context` tokens of a document as a document of their own."""
    real = np.arange(rows.input_ids.shape[1]) < rows.lengths[:, None]
    documents = real.astype(np.int64) if rows.document_ids is None else rows.document_ids
    place = row_inputs(dataclasses.replace(rows, document_ids=documents))["position_ids"]
    windows = np.cumsum(real & (place % context == 0), axis=1)
    return dataclasses.replace(rows, document_ids=np.where(real, windows, 0))
