"""Bidirectional language modelling: two models tell every token, from the left and the right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.errors import SpecError
from trivium.models import LanguageModule, RecurrentModel
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective
from trivium.objectives.causal import Causal


@dataclass(frozen=True)
class Bidirectional(TextObjective):
    """L = - sum_t log P(x_t | x_1 ... x_(t-1)) + log P(x_t | x_(t+1) ... x_T).

        input_ids  once  upon  a     time
        labels     upon  a     time  -100    from the left
                   -100  once  upon  a       from the right

    Labels are [B, 2, T]. Every loss of a token counts by itself, so that the mean is that of the
    two directions, in nats a token, as of a causal language model.
    Source: Peters et al. 2018, section 3.1, where the two are added.
    """

    heads: tuple[str, ...] = ("lm",)

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Shift by one to each side: int64 [B, T] -> input_ids [B, T] and labels [B, 2, T]."""
        forward = Causal().prepare(rows, random)
        assert forward.labels is not None
        backward = np.full_like(forward.labels, NO_LOSS)
        # The token before is told where the token before tells this one.
        told = forward.labels[:, :-1] != NO_LOSS
        backward[:, 1:][told] = rows.input_ids[:, :-1][told]
        arrays = forward.arrays() | {"labels": np.stack((forward.labels, backward), axis=1)}
        length = rows.input_ids.shape[1]
        if "document_ids" not in arrays and (rows.lengths < length).any():
            # Who reads from the right would begin with the padding.
            real = np.arange(length) < rows.lengths[:, None]
            arrays["attention_mask"] = real.astype(np.int64)
        return Batch(**arrays)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of every token from the left and from the right.

        Raises:
            SpecError: the model does not read two ways.
        """
        if not isinstance(model, RecurrentModel):
            raise SpecError('a bidirectional language model is an RNN of direction "two-way".')
        hidden = model.two_ways(**batch.inputs)
        chosen = hidden.flatten(0, 2).index_select(0, batch.label_positions)
        return Loss(model.vocabulary_loss(chosen, batch.targets), len(batch.targets))
