"""Replaced-token detection (ELECTRA): a discriminator finds the tokens replaced by a generator."""

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
from trivium.objectives.masked import TokenMasking
from trivium.objectives.row_arrays import attention_inputs, token_mask
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden
from trivium.text.vocabulary import Vocabulary

# The channel of random numbers for sampling. Lower channels are for `TokenMasking`.
_SAMPLE = 16


class CorruptedBatch(NamedTuple):
    """A batch of B rows in which tokens sampled from the generator replace the masked tokens.

    Args:
        hidden: the generator's hidden states at the M masked positions, [M, D].
        terms: the auxiliary loss of the generator's layers; an empty dict if there is none.
        shown: the corrupted input_ids, which the discriminator reads, int64 [B, T].
        replaced: the targets of the discriminator: True for replaced tokens, bool [B, T].
    """

    hidden: Tensor
    terms: LossTerms
    shown: Tensor
    replaced: Tensor


class ReplacedToken(TokenMasking):
    """Replaced-token detection (ELECTRA): L = L_MLM of the generator + 50 L_D of the discriminator.

    The generator is trained as a masked language model. Tokens sampled from the generator replace
    the masks, and the discriminator predicts for every token whether it was replaced. L_D is the
    binary cross-entropy of these predictions. Here "chef" and the second "the" are masked, and
    "artist" and "the" are sampled:

        row            [CLS]  the    chef   cooked the    meal [SEP]
        generator      [CLS]  the   [MASK]  cooked [MASK] meal [SEP]
        discriminator  [CLS]  the   artist  cooked the    meal [SEP]
        targets          0     0      1       0     0      0     0

    No gradient passes through the sampling. L_MLM is a mean over the masked tokens, and L_D a mean
    over all tokens except padding. With `sharing` = "gradient-disentangled", the discriminator adds
    a trained difference to the token embeddings of the generator. The difference starts at 0. L_D
    has no gradient with respect to the generator's embeddings (He et al. 2021b, section 3.2).

    Source: Clark et al. 2020, section 2. As in the paper, all selected tokens are masked; in the
    released code, 15 % of them are left unchanged. Each row has its own random numbers for
    sampling, so that the samples do not depend on the division into micro-batches.
    """

    builds_single_model: ClassVar[bool] = False
    kind: Literal["replaced-token"] = "replaced-token"
    mask_share: float = Field(
        1.0, ge=0, le=1, description="fraction of selected tokens replaced by [MASK]"
    )
    random_share: float = Field(
        0.0, ge=0, le=1, description="fraction of selected tokens replaced by a random token"
    )
    generator_size: float = Field(
        0.25, gt=0, le=1, description="width of the generator, relative to the discriminator"
    )
    sharing: Sharing = Field(
        "tied", description="how token embeddings are shared; DeBERTa v3: gradient-disentangled"
    )
    discriminator_weight: float = Field(
        50.0, gt=0, description="weight of the discriminator's loss"
    )

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return True for models with a replaced-token head and no MLM head (ELECTRA)."""
        kinds = {head.kind for head in spec.heads}
        return "replaced-token" in kinds and "mlm" not in kinds

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the replaced-token head of the discriminator.

        Raises RecipeError if no generator can be built for the model.
        """
        self._build_generator_spec(spec)
        have = (head for head in spec.heads if head.kind == "replaced-token")
        return (next(have, ReplacedTokenHead()),)

    def model_specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of the discriminator and the generator."""
        return spec, self._build_generator_spec(spec)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Build the generator and the discriminator, which share token embeddings."""
        assert isinstance(spec, TransformerSpec)
        return build_with_generator(
            spec, fraction=self.generator_size, sharing=self.sharing, seed=seed, device=device
        )

    def models_to_save(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the models to save: the discriminator and the generator.

        The keys are subfolders of the run folder: "" for the discriminator, and "generator".
        """
        assert isinstance(module, GeneratorAndDiscriminator)
        return {"": module.discriminator, "generator": module.generator}

    def untie_weights(self, module: nn.Module) -> None:
        """Give generator and discriminator separate copies of the weights that they share.

        This is needed before saving.
        """
        assert isinstance(module, GeneratorAndDiscriminator)
        module.untie_weights()

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Mask tokens for the generator. Returns a batch with input_ids and labels, [B, T] each.

        The `sequence_labels`, float32 [B, T], are uniform random numbers in [0, 1). They are used
        to sample tokens from the generator.
        """
        input_ids, labels = self.corrupt_tokens(rows.input_ids, token_mask(rows), rng, vocabulary)
        uniform = rng.uniform(input_ids.shape[1], _SAMPLE).astype(np.float32)
        # Rounding up to 1 would sample beyond the last token.
        uniform = np.minimum(uniform, np.float32(1.0 - 2.0**-24))
        return Batch(input_ids, labels=labels, sequence_labels=uniform, **attention_inputs(rows))

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the label count of each model, by name.

        The generator predicts the masked tokens, and the discriminator all tokens except padding.
        """
        real = batch.document_ids if batch.attention_mask is None else batch.attention_mask
        num_tokens = batch.input_ids.size if real is None else int(np.count_nonzero(real))
        return {"generator": batch.num_labels, "discriminator": num_tokens}

    def term_weights(self) -> Mapping[str, float]:
        """Return the weights of the loss terms, by name. The generator's loss has the weight 1.

        The weight of the discriminator's loss is large because this loss is small.
        """
        return {"discriminator": self.discriminator_weight}

    def corrupt(self, model: GeneratorAndDiscriminator, batch: TensorBatch) -> CorruptedBatch:
        """Replace masked tokens with samples from the generator. Returns the corrupted batch."""
        assert batch.sequence_labels is not None
        positions, input_ids = batch.label_positions, batch.inputs["input_ids"]
        hidden, terms = forward_hidden(model.generator, batch.inputs, gather_positions=positions)
        sampled = model.sample(hidden, batch.sequence_labels.flatten()[positions])
        ids = input_ids.flatten()
        shown = ids.scatter(0, positions, sampled)
        replaced = shown != ids.scatter(0, positions, batch.targets)
        return CorruptedBatch(hidden, terms, shown.view_as(input_ids), replaced.view_as(input_ids))

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the MLM loss of the generator and the binary cross-entropy of the discriminator.

        Returns the sum of each over the batch, in nats.
        """
        assert isinstance(model, GeneratorAndDiscriminator)
        inputs = batch.inputs
        hidden, terms, shown, replaced = self.corrupt(model, batch)
        corrupted = inputs | {"input_ids": shown}
        states, more = forward_hidden(model.discriminator, corrupted)
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

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a `fill-mask` command that uses the generator."""
        return super().suggest_command(f"{run}/generator", lm, text)

    def _build_generator_spec(self, spec: Spec) -> TransformerSpec:
        """Return the spec of the generator for a discriminator.

        Raises RecipeError if the discriminator is not a Transformer encoder, or if no generator can
        be built for it.
        """
        if not isinstance(spec, TransformerSpec) or spec.family != "encoder-only":
            raise RecipeError(
                f'objective.kind = "{self.kind}" is for Transformer encoders such as electra-mini.'
            )
        try:
            return generator_spec(spec, self.generator_size)
        except SpecError as error:
            raise RecipeError(f'objective.kind = "{self.kind}": {error}') from None
