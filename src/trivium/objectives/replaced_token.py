"""Replaced-token detection: a small generator fills masks, and every token is told true or not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from torch.nn import functional as F

from trivium.data import Batch, RowBatch, RowRandom
from trivium.errors import SpecError
from trivium.models import LanguageModule
from trivium.models.replaced import GeneratorAndDiscriminator
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective
from trivium.objectives.masked import Masked

# The stream of noise beside those of `Masked`.
_SAMPLE = 16


@dataclass(frozen=True)
class ReplacedToken(TextObjective):
    """ELECTRA's objective: L = L_MLM of the generator + 50 L of the discriminator.

    The generator learns to fill masks; what it draws for them is put in their places, and the
    discriminator tells of every token whether it is another than stood there. With "chef" and "the"
    masked, and "artist" and "the" drawn:

        row            [CLS]  the    chef   cooked the    meal [SEP]
        generator      [CLS]  the   [MASK]  cooked [MASK] meal [SEP]
        discriminator  [CLS]  the   artist  cooked the    meal [SEP]
        asked of it      0     0      1       0     0      0     0

    No gradient goes through the draws. Every term is divided by its own count: masked tokens, and
    all real tokens.

    Args:
        masked: hides tokens of the generator's text (in the paper by masks alone: `mask_share` 1;
            their released code keeps 15 % of the chosen tokens as they are).
        weight: of the discriminator's loss.

    Source: Clark et al. 2020, section 2. Draws are made from the noise of the row, so that they do
    not depend on how a batch is split.
    """

    masked: Masked
    weight: float = 50.0
    heads: tuple[str, ...] = ("replaced-token",)

    @property
    def terms(self) -> tuple[str, ...]:
        """What the generator and the discriminator learn."""
        return "generator", "discriminator"

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """Masked tokens, and real ones."""
        real = batch.document_ids if batch.attention_mask is None else batch.attention_mask
        shown = batch.input_ids.size if real is None else int(np.count_nonzero(real))
        return batch.num_labels, shown

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Hide tokens: int64 [B, T] -> the generator's input_ids and labels [B, T].

        What its tokens are drawn with, float32 [B, T] in [0, 1), goes along as `text_labels`.
        """
        draws = random.uniform(rows.input_ids.shape[1], _SAMPLE)
        # Rounding up to 1 would draw beyond the last token.
        draws = np.minimum(draws.astype(np.float32), np.float32(1.0 - 2.0**-24))
        return dataclasses.replace(self.masked.prepare(rows, random), text_labels=draws)

    def loss(self, model: LanguageModule | GeneratorAndDiscriminator, batch: TensorBatch) -> Loss:
        """Nats of the masked tokens, and of true or not for all of them.

        Raises:
            SpecError: the model has no generator.
        """
        if not isinstance(model, GeneratorAndDiscriminator):
            raise SpecError("replaced tokens come from a generator: build the model with one.")
        inputs, places = batch.inputs, batch.label_positions
        assert batch.text_labels is not None
        hidden = model.generator(**inputs, select=places)
        drawn = model.sample(hidden, batch.text_labels.flatten()[places])
        ids = inputs["input_ids"].flatten()
        shown = ids.scatter(0, places, drawn)
        replaced = shown != ids.scatter(0, places, batch.targets)
        told = model.discriminator(**(inputs | {"input_ids": shown.view_as(inputs["input_ids"])}))
        scores = model.discriminator.logits(told, head="replaced-token").flatten().float()
        losses = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="none")
        real, count = inputs.get("attention_mask", inputs.get("document_ids")), len(losses)
        if real is not None:
            losses = losses * (real.flatten() != 0)
            count = int(real.count_nonzero())
        return Loss(
            model.generator.vocabulary_loss(hidden, batch.targets),
            len(batch.targets),
            name="generator",
            others=(Loss(losses.sum(), count, name="discriminator", weight=self.weight),),
        )
