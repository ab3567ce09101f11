"""The base class of training objectives.

On the host, `prepare` makes a `Batch` of inputs and labels from rows of tokens. On the device,
`loss` computes the loss terms of the batch.

An objective is a configuration class, and its fields are its recipe keys. To add an objective,
write a module with a subclass of `Objective` that has a field `kind`.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

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
from trivium.text.roles import SENTINELS, get_role
from trivium.text.vocabulary import Vocabulary


class Objective(Choice, Config, ABC):
    """Base class of training objectives.

    A subclass has a field `kind: Literal["name"] = "name"` with the name of the objective in
    recipes and commands. It also has a field with a description for each of its recipe keys.
    """

    labelled: ClassVar[bool] = False
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """The names of the special tokens that the objective needs. New tokenizers contain them.

    A name such as `[MASK]` stands for a role, so a tokenizer with `<mask>` also has this token.
    `vocabulary.id_of` returns the id of a name. `control_tokens` lists the names without a role.
    """
    separates_documents: ClassVar[bool] = True
    """Whether the objective supports `data.separate_documents`."""
    needs_documents: ClassVar[bool] = False
    """Whether `prepare` needs rows with `document_ids`."""
    prepares_steps: ClassVar[bool] = False
    """Whether `prepare` needs all rows of a step at once, because the rows affect each other."""
    needs_whole_step: ClassVar[bool] = False
    """Whether `loss` needs all rows of a step at once, for example for in-batch negatives.

    The model still processes the rows in micro-batch slices, which are distributed over the
    processes (`TensorBatch.compute_by_slice`). `prepare` must sort the rows, longest first.
    """
    rolls_out: ClassVar[bool] = False
    """Whether the model generates the texts that it is trained on (`PolicyGradient`)."""
    builds_single_model: ClassVar[bool] = True
    """Whether `build` returns a single model, not a module that contains several models."""
    tensor_parallel: ClassVar[bool] = True
    """Whether `loss` supports tensor parallelism, which shards the LM head."""
    supported_family: ClassVar[str | None] = None
    """The only model family that the objective can train. None if it is not limited to one."""
    head: ClassVar[str] = "lm"
    """The kind of head that the objective trains. The model must have such a head."""

    @classmethod
    def advice(cls) -> Advice:
        """Return the defaults and error messages for this objective.

        If its kind is not in `ADVICE`, the entry of the nearest base class is used.
        """
        bases = (base for base in cls.__mro__ if issubclass(base, Objective))
        kinds = (base.model_fields["kind"].default for base in bases)
        return next((ADVICE[kind] for kind in kinds if kind in ADVICE), Advice())

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return whether this is the default objective for a model architecture.

        The default is the pretraining objective with which the architecture was published.
        """
        return False

    @property
    def carries_state(self) -> bool:
        """Whether the model starts each row with its final state of the previous row."""
        return False

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the heads that the model must have. This method is called before data is read.

        Raises:
            RecipeError: the model cannot be trained with this objective.
        """
        self.require_fit(spec)
        return (self.require_head(spec),)

    def fits(self, spec: Spec) -> bool:
        """Return whether the objective can train this model. Heads are not checked."""
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
        """Raise RecipeError if any of the `special_tokens` is missing from the vocabulary."""
        missing = [
            name for name in self.special_tokens if vocabulary.special_token_id(name) is None
        ]
        if missing:
            raise RecipeError(
                f'objective.kind = "{self.kind}" needs the special token{"s" * (len(missing) > 1)} '
                f"{', '.join(missing)}, and this {vocabulary.kind} tokenizer has none: leave "
                "tokenizer.kind and tokenizer.special_tokens out for all that are needed, or list "
                "every special token in tokenizer.special_tokens, which replaces the usual ones."
            )

    @property
    def control_tokens(self) -> list[str]:
        """The special tokens of the objective without a role such as "mask", except T5 sentinels.

        If the name of such a token occurs in a training text, it is always encoded as a special
        token, never as plain text.
        """
        return [
            name for name in self.special_tokens if get_role(name) is None and name not in SENTINELS
        ]

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError if the objective does not support how the recipe makes rows from text.

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
        """Return the default `[tokenizer]` keys for this objective, such as special tokens."""
        return {}

    def model_specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of all models to train: `spec` and any auxiliary models.

        They are used to estimate memory and FLOPs.
        """
        return (spec,)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Build the module that is trained, with random weights.

        It is a `LanguageModule`, or ELECTRA's `GeneratorAndDiscriminator`. A run builds it on the
        meta device.
        """
        return build(spec, seed=seed, device=device)

    def models_to_save(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the models that a run saves. Each key is a subfolder of the run folder.

        The key "" is the run folder itself.
        """
        return {"": module}  # type: ignore[dict-item]

    def initial_values(self, module: LanguageModule) -> dict[str, Tensor]:
        """Return the weights of a module that do not start at random, by name. By default, none."""
        return {}

    def untie_weights(self, module: nn.Module) -> None:
        """Give each model in `module` its own copy of shared weights, for saving.

        By default there are no shared weights, and nothing is done.
        """

    def decoder_start_id(self, vocabulary: Vocabulary) -> int | None:
        """Return the decoder start token id of an encoder-decoder, or None for other models."""
        return None

    def fit(self, rows: Rows, vocabulary: Vocabulary) -> Self:
        """Compute the statistics of the training text that the objective needs.

        This method is called before the first step. Returns the fitted objective, by default
        unchanged.
        """
        return self

    @abstractmethod
    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return the model inputs and labels for some rows of a step. This is a pure function."""

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the number of labels of each loss term, by name.

        The summed loss of each term is divided by this number.
        """
        return {"loss": batch.num_labels}

    def term_weights(self) -> Mapping[str, float]:
        """Return the weights of the loss terms, by name. Terms that are missing have weight 1."""
        return {}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the loss terms in nats, each summed over the labels of the batch.

        The trainer divides each sum by the number of labels in the step (`loss_denominators`). The
        auxiliary loss of the layers is a separate term, `AUX_LOSS`. In evaluation mode
        (`model.training` is False), label smoothing is not applied.
        """
        return token_losses(model, batch)

    def generate_sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return a prompt and the output of the model, for the report. `text` is a validation text.

        By default the prompt is a sentence of the text with one word masked, and the output lists
        the five most probable words. Returns None if the model cannot fill masks or the text is too
        short.
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
        """Return the command to suggest at the end of a run, without the leading `trivium`.

        The input of the command is taken from the validation text `text`.
        """
        mask = self.advice().mask
        if mask is None:
            return f"generate {run} {shlex.quote(first_words(text, 6) or 'Once upon a time')}"
        prompt, _ = mask_middle(text, mask) or (f"The {mask} was closed.", "")
        return f"fill-mask {run} {shlex.quote(prompt)}"
