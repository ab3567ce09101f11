"""Tagging: what every word of a text is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import Objective, TensorBatch


@dataclass(frozen=True)
class Tagging(Objective):
    """L = - sum over words of log P(tag | text), asked at the first token of every word.

        input_ids  [CLS]  Ada  Love  ##lace  wrote  [SEP]
        labels     -100    1    2     -100     0    -100

    Source: Devlin et al. 2018, section 5.3.
    """

    class_weights: tuple[float, ...] | None = None
    heads: tuple[str, ...] = ("tagger",)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of the tags of all words."""
        hidden = model(**batch.inputs, select=batch.label_positions)
        scores = model.logits(hidden, head="tagger").float()
        weights = None
        if self.class_weights is not None:
            weights = torch.tensor(self.class_weights, device=scores.device)
        total = F.cross_entropy(scores, batch.targets, weight=weights, reduction="sum")
        return Loss(total, len(batch.targets))
