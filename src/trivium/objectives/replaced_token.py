"""Replaced-token detection (ELECTRA): a small generator fills masks, a discriminator finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.data.batch import Batch, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError, SpecError
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.electra import (
    GeneratorAndDiscriminator,
    Sharing,
    build_with_generator,
    generator_spec,
)
from trivium.models.heads import Head
from trivium.models.heads.tokens import ReplacedTokenHead
from trivium.models.transformer import TransformerSpec
from trivium.objectives.masked import Masking
from trivium.objectives.row_arrays import real_tokens, row_inputs
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, read
from trivium.text.vocabulary import Vocabulary

# The channel of noise beside those of `Masking`.
_SAMPLE = 16


class Corrupted(NamedTuple):
    """What the generator makes of a batch.

    Args:
        hidden: its states of the masked positions, [M, D], and `terms`, what its layers add.
        shown: int64 [B, T], what the discriminator reads.
        replaced: bool [B, T], its targets.
    """

    hidden: Tensor
    terms: LossTerms
    shown: Tensor
    replaced: Tensor


class ReplacedToken(Masking):
    """ELECTRA's objective: L = L_MLM of the generator + 50 L of the discriminator.

    The generator learns to fill masks; what is sampled from it is put in their positions, and the
    discriminator predicts for every token whether it was replaced. With "chef" and "the" masked,
    and "artist" and "the" sampled:

        row            [CLS]  the    chef   cooked the    meal [SEP]
        generator      [CLS]  the   [MASK]  cooked [MASK] meal [SEP]
        discriminator  [CLS]  the   artist  cooked the    meal [SEP]
        its targets      0     0      1       0     0      0     0

    No gradient passes through the samples. Every term is divided by its own count: masked tokens,
    and all real tokens. With sharing = "gradient-disentangled" the token vectors of the
    discriminator are those of the generator, through which no gradient of its loss passes, and a
    difference that starts at 0 (He et al. 2021b, section 3.2).

    Source: Clark et al. 2020, section 2 (masks alone; their released code keeps 15 % of the chosen
    tokens as they are). Samples use the noise of the row, so that they do not depend on how a
    batch is split.
    """

    # What there is to detect depends on the generator: there is no baseline.
    trains_one_model: ClassVar[bool] = False
    kind: Literal["replaced-token"] = "replaced-token"
    mask_share: float = Field(1.0, ge=0, le=1, description="of these, share that is masked")
    random_share: float = Field(
        0.0, ge=0, le=1, description="of these, share that another token replaces"
    )
    generator_size: float = Field(
        0.25, gt=0, le=1, description="width of the generator, relative to the discriminator"
    )
    sharing: Sharing = Field(
        "tied", description="how they share token vectors; DeBERTa v3: gradient-disentangled"
    )
    discriminator_weight: float = Field(
        50.0, gt=0, description="weight of the discriminator's loss"
    )

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Encoders that detect replaced tokens and do not fill masks."""
        kinds = {head.kind for head in spec.heads}
        return "replaced-token" in kinds and "mlm" not in kinds

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the discriminator's head, which can be added to any encoder."""
        self._generator(spec)
        have = (head for head in spec.heads if head.kind == "replaced-token")
        return (next(have, ReplacedTokenHead()),)

    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of the discriminator and the generator."""
        return spec, self._generator(spec)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Return both models, which share token embeddings."""
        assert isinstance(spec, TransformerSpec)
        return build_with_generator(
            spec, fraction=self.generator_size, sharing=self.sharing, seed=seed, device=device
        )

    def models(self, module: nn.Module) -> dict[str, LanguageModule]:
        """The discriminator is the run's model; the generator, which fills masks, lies beside."""
        assert isinstance(module, GeneratorAndDiscriminator)
        return {"": module.discriminator, "generator": module.generator}

    def untie_weights(self, module: nn.Module) -> None:
        """See `Objective.separate`."""
        assert isinstance(module, GeneratorAndDiscriminator)
        module.untie_weights()

    def tie_weights(self, module: nn.Module) -> None:
        """See `Objective.join`."""
        assert isinstance(module, GeneratorAndDiscriminator)
        module.tie_weights()

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Mask tokens: int64 [B, T] -> the generator's input_ids and labels [B, T].

        The uniform numbers it is sampled with, float32 [B, T] in [0, 1), are `sequence_labels`.
        """
        input_ids, labels = self.mask(rows.input_ids, real_tokens(rows), rng, vocabulary)
        uniform = rng.uniform(input_ids.shape[1], _SAMPLE).astype(np.float32)
        # Rounding up to 1 would sample beyond the last token.
        uniform = np.minimum(uniform, np.float32(1.0 - 2.0**-24))
        return Batch(input_ids, labels=labels, sequence_labels=uniform, **row_inputs(rows))

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Masked tokens, and real ones."""
        real = batch.document_ids if batch.attention_mask is None else batch.attention_mask
        shown = batch.input_ids.size if real is None else int(np.count_nonzero(real))
        return {"generator": batch.num_labels, "discriminator": shown}

    def term_weights(self) -> Mapping[str, float]:
        """Return a large weight for the discriminator, whose loss per token is small."""
        return {"discriminator": self.discriminator_weight}

    def corrupt(self, model: GeneratorAndDiscriminator, batch: TensorBatch) -> Corrupted:
        """Put what the generator draws in the place of masks."""
        assert batch.sequence_labels is not None
        positions, input_ids = batch.label_positions, batch.inputs["input_ids"]
        hidden, terms = read(model.generator, batch.inputs, gather_positions=positions)
        sampled = model.sample(hidden, batch.sequence_labels.flatten()[positions])
        ids = input_ids.flatten()
        shown = ids.scatter(0, positions, sampled)
        replaced = shown != ids.scatter(0, positions, batch.targets)
        return Corrupted(hidden, terms, shown.view_as(input_ids), replaced.view_as(input_ids))

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Nats of the masked tokens, and of "replaced?" for every token."""
        assert isinstance(model, GeneratorAndDiscriminator)
        inputs = batch.inputs
        hidden, terms, shown, replaced = self.corrupt(model, batch)
        corrupted = inputs | {"input_ids": shown}
        states, more = read(model.discriminator, corrupted)
        logits = model.discriminator.logits(states, head="replaced-token")
        losses = F.binary_cross_entropy_with_logits(
            logits.flatten().float(), replaced.flatten().float(), reduction="none"
        )
        real = inputs.get("attention_mask", inputs.get("document_ids"))
        if real is not None:
            losses = losses * (real.flatten() != 0)
        return {
            "generator": model.generator.lm_loss(hidden, batch.targets),
            "discriminator": losses.sum(),
            **{term: terms[term] + loss for term, loss in more.items()},
        }

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return `fill-mask` with the generator."""
        return super().try_it(f"{run}/generator", lm, text)

    def _generator(self, spec: Spec) -> TransformerSpec:
        if not isinstance(spec, TransformerSpec) or spec.family != "encoder-only":
            raise RecipeError(
                f'objective.kind = "{self.kind}" is for Transformer encoders such as electra-mini.'
            )
        try:
            return generator_spec(spec, self.generator_size)
        except SpecError as error:
            raise RecipeError(f'objective.kind = "{self.kind}": {error}') from None
