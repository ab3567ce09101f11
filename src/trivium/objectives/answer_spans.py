"""Extractive question answering: where in a text the answer begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from trivium.data import Batch
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import Objective, TensorBatch


@dataclass(frozen=True)
class AnswerSpans(Objective):
    """L = - (log P(start) + log P(end)) / 2, softmax over all positions of the input.

        input_ids    [CLS] who wrote it [SEP] Ada wrote the first program [SEP]
        text_labels  [5, 5]                      first and last token of the answer

    Without an answer both are position 0. Source: Devlin et al. 2018, sections 4.2 and 4.3.
    """

    heads: tuple[str, ...] = ("span",)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """Questions with a window of their text."""
        return (batch.num_rows,)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of both ends, half of their sum."""
        assert batch.text_labels is not None
        mask = batch.inputs.get("attention_mask")
        scores = model.logits(model(**batch.inputs), head="span").float()  # [B, T, 2]
        if mask is not None:
            scores = scores.masked_fill(~mask.bool()[..., None], torch.finfo(scores.dtype).min)
        total = F.cross_entropy(scores, batch.text_labels, reduction="sum")
        return Loss(0.5 * total, len(scores))
