"""Writing what an example says: a target from its source, a response from its prompt."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import Objective, TensorBatch


@dataclass(frozen=True)
class ToldTokens(Objective):
    """L = - sum_t log P(y_t | y_1 ... y_(t-1), x), the labels given with the examples.

    An encoder-decoder reads the source and writes the target, <s> what its decoder begins with:

        input_ids          the cat sleeps </s>
        decoder_input_ids  <s> le chat dort
        labels             le chat dort </s>

    A decoder reads the prompt and is asked for the response alone:

        input_ids  how are you ? fine </s>
        labels     -100 -100 -100 fine </s> -100

    Args:
        smoothing: share of a label that is spread over the whole vocabulary (Szegedy et al. 2015).

    Source: Vaswani et al. 2017, sections 3 and 5.4; Radford et al. 2018, equation 1.
    """

    smoothing: float = 0.0
    heads: tuple[str, ...] = ("lm",)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of the labels."""
        hidden = model(**batch.inputs, select=batch.label_positions)
        total = model.vocabulary_loss(hidden, batch.targets, smoothing=self.smoothing)
        return Loss(total, len(batch.targets))
