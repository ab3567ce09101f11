"""Classification: what a whole text is, told by one vector of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.data import Batch
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import Objective, TensorBatch


@dataclass(frozen=True)
class Classification(Objective):
    """L = L_task + lambda L_LM, the second term for models that also tell the next token.

        input_ids    [CLS] a dull film [SEP]
        text_labels  0                           of classes [B]: softmax, cross-entropy
                     [1, 0, 1]                   of several labels [B, L]: a sigmoid each
                     2.5                         of numbers [B]: squared error

    Args:
        kind: of the labels.
        class_weights: what a text of each class counts, as a multiple; None: all alike.
        lm_weight: lambda. With 0 the language model is left out of training, and only measured.

    Source: Devlin et al. 2018, section 4.1; Radford et al. 2018, equations 3 to 5 (lambda 0.5).
    Several labels count by the mean of theirs, so that L_task does not grow with their number.
    """

    kind: Literal["classes", "multi-label", "numbers"] = "classes"
    class_weights: tuple[float, ...] | None = None
    lm_weight: float = 0.0
    heads: tuple[str, ...] = ("classifier",)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """Texts and, with a language model, the tokens it tells."""
        return (batch.num_rows, batch.num_labels) if self.lm_weight else (batch.num_rows,)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of the classes (or squared errors), and of the next tokens."""
        assert batch.text_labels is not None
        hidden = model(**batch.inputs)
        mask = batch.inputs.get("attention_mask")
        scores = model.logits(hidden, head="classifier", attention_mask=mask).float()
        total = self._task_loss(scores, batch.text_labels)
        others: tuple[Loss, ...] = ()
        if self.lm_weight or (not model.training and "lm" in model.heads):
            told = hidden.flatten(0, 1).index_select(0, batch.label_positions)
            nats = model.vocabulary_loss(told, batch.targets)
            others = (Loss(nats, len(batch.targets), name="lm", weight=self.lm_weight),)
        return Loss(total, len(scores), name="task", others=others)

    def _task_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        weights = None
        if self.class_weights is not None:
            weights = torch.tensor(self.class_weights, device=scores.device)
        match self.kind:
            case "classes":
                return F.cross_entropy(scores, labels, weight=weights, reduction="sum")
            case "multi-label":
                found = F.binary_cross_entropy_with_logits(
                    scores, labels.float(), weight=weights, reduction="none"
                )
                return found.mean(-1).sum()
            case "numbers":
                return F.mse_loss(scores[:, 0], labels.float(), reduction="sum")
