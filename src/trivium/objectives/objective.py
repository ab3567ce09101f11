"""The base class of objectives.

On the host, `prepare` makes a `Batch` of inputs and labels from rows of tokens. On the device,
`loss` computes the loss terms of the batch.

An objective is a configuration class whose fields are its recipe keys. To add an objective, write a
module with a subclass of `Objective` that has a `kind`.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import nn

from trivium.choice import Choice
from trivium.config import Config
from trivium.data.batch import Batch, RowBatch
from trivium.data.row_order import RowRandom
from trivium.data.rows import Rows
from trivium.errors import RecipeError
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.objectives.advice import ADVICE, Advice
from trivium.objectives.excerpt import first_words, mask_middle
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, token_losses
from trivium.text.roles import SENTINELS, role_of
from trivium.text.vocabulary import Vocabulary


class Objective(Choice, Config, ABC):
    """A training objective for one kind of data.

    A subclass has a field `kind: Literal["name"] = "name"`, which is the name of the objective in
    recipes and commands. For each recipe key it has a field with a description.
    """

    labelled: ClassVar[bool] = False
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """The names of the special tokens that the objective needs. New tokenizers contain them.

    A name such as `[MASK]` stands for a role: a tokenizer with `<mask>` also has the mask token.
    `vocabulary.id_of` returns the ids. `control_tokens` lists the names without a role.
    """
    separates_documents: ClassVar[bool] = True
    """Whether `data.separate_documents` is supported."""
    needs_documents: ClassVar[bool] = False
    """Whether `prepare` needs rows with `document_ids`."""
    prepares_steps: ClassVar[bool] = False
    """Whether `prepare` needs all rows of a step, because the rows affect each other."""
    needs_whole_step: ClassVar[bool] = False
    """Whether `loss` compares all rows of a step, as with in-batch negatives.

    The model still processes the rows in micro-batch slices, which are distributed over the
    processes (`TensorBatch.compute_by_slice`). The longest rows must come first.
    """
    rolls_out: ClassVar[bool] = False
    """Whether each step trains on texts that the model generates (`PolicyGradient`)."""
    builds_single_model: ClassVar[bool] = True
    """Whether `build` returns a single model instead of several models in one module."""
    tensor_parallel: ClassVar[bool] = True
    """Whether `loss` supports tensor parallelism, in which the LM head is sharded."""
    supported_family: ClassVar[str | None] = None
    """The only model family that the objective can train; None: several families."""
    head: ClassVar[str] = "lm"
    """The kind of head that is trained. The model must have such a head."""

    @classmethod
    def advice(cls) -> Advice:
        """Return the defaults and error messages for this objective or for its base class."""
        bases = (base for base in cls.__mro__ if issubclass(base, Objective))
        kinds = (base.model_fields["kind"].default for base in bases)
        return next((ADVICE[kind] for kind in kinds if kind in ADVICE), Advice())

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return whether this is the default objective for models of this architecture.

        The default is the objective that they were originally pretrained with.
        """
        return False

    @property
    def carries_state(self) -> bool:
        """Whether each row starts with the final state of the row before it."""
        return False

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the heads that the model must have. This method is called before any data is read.

        Raises:
            RecipeError: the model cannot be trained with this objective.
        """
        self.require_fit(spec)
        return (self.require_head(spec),)

    def fits(self, spec: Spec) -> bool:
        """Return whether the objective can train this model. The heads are not checked."""
        return self.supported_family in (None, spec.family)

    def require_fit(self, spec: Spec) -> None:
        """Raise RecipeError if the objective cannot train this model."""
        if not self.fits(spec):
            advice = self.advice()
            purpose = advice.purpose or f"trains {self.supported_family} models"
            raise RecipeError(
                f'objective.kind = "{self.kind}" {purpose}: use {advice.suggested}; this model is '
                f'of kind "{spec.kind}", {spec.family}.'
            )

    def require_head(self, spec: Spec) -> Head:
        """Return the model's head of kind `head`. Raises RecipeError if it is missing."""
        for head in spec.heads:
            if head.kind == self.head:
                return head
        known = ", ".join(head.kind for head in spec.heads) or "none"
        raise RecipeError(
            f'objective.kind = "{self.kind}" trains a head of kind "{self.head}"; this model has: '
            f'{known}. Encoders are trained with "masked", decoders with "causal".'
        )

    def check_tokens(self, vocabulary: Vocabulary) -> None:
        """Raise RecipeError if one of the `special_tokens` is missing from the vocabulary."""
        missing = [name for name in self.special_tokens if vocabulary.find(name) is None]
        if missing:
            raise RecipeError(
                f'objective.kind = "{self.kind}" needs the special token{"s" * (len(missing) > 1)} '
                f"{', '.join(missing)}, and this {vocabulary.kind} tokenizer has none: leave "
                "tokenizer.kind and tokenizer.special_tokens out for all that are needed, or list "
                "every special token in tokenizer.special_tokens, which replaces the usual ones."
            )

    @property
    def control_tokens(self) -> list[str]:
        """The special tokens that have no role (such as mask) and are not T5 sentinels.

        In training texts their names are always encoded as these tokens, never as plain text.
        """
        return [
            name for name in self.special_tokens if role_of(name) is None and name not in SENTINELS
        ]

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError for keys of `[data]` that the objective does not support.

        Args:
            packing: the recipe key `data.packing`.
            separate_documents: the recipe key `data.separate_documents`.
            is_mixed: whether the recipe has several data sources (`[[mix]]`).
        """
        if separate_documents and not self.separates_documents:
            raise RecipeError(
                f'data.separate_documents has no effect with objective.kind = "{self.kind}", which '
                'reads whole rows: leave it out, or set data.packing = "truncate" for one document '
                "per row."
            )

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Return the defaults of `[tokenizer]` keys for this objective, such as special tokens."""
        return {}

    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of all models that are trained, to estimate memory and FLOPs."""
        return (spec,)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Build the module to train, with random weights."""
        return build(spec, seed=seed, device=device)

    def models(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the models that a run saves, by subfolder of the run folder.

        The key "" stands for the run folder itself.
        """
        return {"": module}  # type: ignore[dict-item]

    def untie_weights(self, module: nn.Module) -> None:
        """Give each of `models` its own copy of shared weights, before loading or saving."""

    def tie_weights(self, module: nn.Module) -> None:
        """Share the weights between `models` again, before training."""

    def decoder_start(self, vocabulary: Vocabulary) -> int | None:
        """Return the decoder start token id of an encoder-decoder; None for other models."""
        return None

    def fit(self, rows: Rows, vocabulary: Vocabulary) -> Self:
        """Return the objective fitted to the training text, by default unchanged.

        This method is called before the first step. It computes the statistics of the text that
        some objectives need.
        """
        return self

    @abstractmethod
    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return the model inputs and labels for rows of a step. This is a pure function."""

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of labels per loss term, by which the summed loss is divided."""
        return {"loss": batch.num_labels}

    def term_weights(self) -> Mapping[str, float]:
        """Return the weight of each loss term in the total loss. Missing terms have weight 1."""
        return {}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the loss terms in nats, each summed over the labels of the batch.

        The trainer divides each sum by the number of labels in the step. The auxiliary losses of
        layers are a separate term, `AUX_LOSS`. Label smoothing is not applied in evaluation mode
        (`model.training` is False).
        """
        return token_losses(model, batch)

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return a prompt made from a validation text, and the model's output, for the report.

        By default the prompt is the first sentence of the text with a masked word, and the output
        is the list of the most probable words. Returns None if the model cannot fill masks or the
        text is too short.
        """
        fills_masks = self.advice().mask and "fill_mask" in lm.capabilities
        tokenizer = lm.tokenizer if fills_masks else None
        if tokenizer is None or tokenizer.mask_id is None:
            return None
        masked = mask_middle(text, tokenizer.tokens[tokenizer.mask_id])
        if masked is None:
            return None
        fills = lm.fill_mask(masked[0], top_k=5)
        words = (f'"{fill.token.strip()}" {fill.score:.0%}' for fill in fills)
        return f"{masked[0]} (hidden: {masked[1]})", ", ".join(words)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return the command suggested at the end of a run, without the leading `trivium`.

        `text` is a validation text that is used for the input of the command.
        """
        mask = self.advice().mask
        if mask is None:
            return f"generate {run} {shlex.quote(first_words(text, 6) or 'Once upon a time')}"
        prompt, _ = mask_middle(text, mask) or (f"The {mask} was closed.", "")
        return f"fill-mask {run} {shlex.quote(prompt)}"
