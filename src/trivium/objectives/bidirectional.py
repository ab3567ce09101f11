"""Bidirectional language modelling (ELMo): predict tokens from the left and from the right."""

from __future__ import annotations

from typing import Literal

import numpy as np

from trivium.data.batch import IGNORE_INDEX, Batch, RowBatch
from trivium.data.row_order import RowRandom
from trivium.models import LanguageModule, RecurrentModel
from trivium.models.base_model import Spec
from trivium.objectives.causal import next_token_labels
from trivium.objectives.objective import Objective
from trivium.objectives.row_arrays import attention_inputs
from trivium.objectives.tensor_batch import LossTerms, TensorBatch
from trivium.text.vocabulary import Vocabulary


class BidirectionalLM(Objective):
    """The bidirectional language modelling objective of ELMo.

    L = - sum_t [log P(x_t | x_1 ... x_(t-1)) + log P(x_t | x_(t+1) ... x_T)]

        input_ids  once  upon  a     time
        labels     upon  a     time  -100    from the left
                   -100  once  upon  a       from the right

    The labels have shape [B, 2, T] for B rows, 2 directions and T positions. The reported loss is
    the mean over both directions, so it is in nats per token, like the loss of a causal language
    model.

    Source: Peters et al. 2018, section 3.1. In the paper the losses of both directions are added.
    """

    kind: Literal["bidirectional-lm"] = "bidirectional-lm"

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return True for bidirectional language models: this is their default objective."""
        return spec.is_bilm

    def fits(self, spec: Spec) -> bool:
        """Return True for bidirectional language models, which this objective can train."""
        return spec.is_bilm

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return a batch whose labels are the next and the previous tokens, int64 [B, 2, T]."""
        forward = next_token_labels(rows)
        backward = np.full_like(forward, IGNORE_INDEX)
        # If token t predicts token t + 1, then token t + 1 also predicts token t.
        has_next = forward[:, :-1] != IGNORE_INDEX
        backward[:, 1:][has_next] = rows.input_ids[:, :-1][has_next]
        labels = np.stack((forward, backward), axis=1)
        return Batch(input_ids=rows.input_ids, labels=labels, **attention_inputs(rows))

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the cross-entropy loss in nats, summed over the labels of both directions."""
        assert isinstance(model, RecurrentModel)
        hidden = model.two_ways(**batch.inputs)
        hidden = hidden.flatten(0, 2).index_select(0, batch.label_positions)
        return {"loss": model.lm_loss(hidden, batch.targets)}
