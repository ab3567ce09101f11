"""The protocol of objectives: rows -> `Batch` on the host, `Batch` -> sums of losses on the device.

An objective is a configuration class: its fields are its recipe keys. To add one, write one module
with one class that has a `kind`.
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
from trivium.objectives.excerpt import beginning, mask_middle
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, token_losses
from trivium.text.roles import SENTINELS, role_of
from trivium.text.vocabulary import Vocabulary


class Objective(Choice, Config, ABC):
    """How a model learns from one kind of data.

    A subclass has `kind: Literal["name"] = "name"`, which recipes and commands call it by, and one
    field with a description for every recipe key.
    """

    labelled: ClassVar[bool] = False
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Names of the special tokens that it needs, its own or those of roles: `[MASK]` also stands
    for a `<mask>`. New tokenizers have them, and `vocabulary.id_of` gives their ids in `prepare`.
    In the text of a run the names of its own ones are control tokens.
    """
    separates_documents: ClassVar[bool] = True
    """Whether `data.separate_documents` has an effect."""
    needs_documents: ClassVar[bool] = False
    """Whether rows must be taken with `document_ids`."""
    prepares_steps: ClassVar[bool] = False
    """Whether what becomes of a row depends on the other rows of its step."""
    needs_whole_step: ClassVar[bool] = False
    """Whether `loss` compares all rows of a step, such as in-batch negatives. They pass through the
    model in parts, each process some of them (`TensorBatch.compute_rows`); the longest comes first.
    """
    rolls_out: ClassVar[bool] = False
    """Whether a step learns from the model's own samples (`PolicyGradient`)."""
    trains_one_model: ClassVar[bool] = True
    """Whether the module that it builds is one model, whose layers are one above the other."""
    tensor_parallel: ClassVar[bool] = True
    """Whether `loss` works where processes share the head over the vocabulary."""
    supported_family: ClassVar[str | None] = None
    """The only family of models that it trains; None: several."""
    head: ClassVar[str] = "lm"
    """The kind of the head that is trained, which the model must have."""
    steps_to_beat_unigram: ClassVar[float] = 700
    """Steps after the warm-up until a loss is clearly below the unigram baseline: about three times
    what `benchmarks/loss_bands.py` measures of the slowest, encoders and post-norm decoders."""

    @classmethod
    def advice(cls) -> Advice:
        """Return the defaults and messages for this kind, or for the kind that it extends."""
        bases = (base for base in cls.__mro__ if issubclass(base, Objective))
        kinds = (base.model_fields["kind"].default for base in bases)
        return next((ADVICE[kind] for kind in kinds if kind in ADVICE), Advice())

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Whether models of this form were published with this objective."""
        return False

    @property
    def carries_state(self) -> bool:
        """Whether rows are read in order, each with the state that the row before has left."""
        return False

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """The heads the model must have; called before any data is read.

        Raises:
            RecipeError: a model of this form cannot be trained with this objective.
        """
        self.require_fit(spec)
        return (self.require_head(spec),)

    def fits(self, spec: Spec) -> bool:
        """Return whether this objective can train models of this form, apart from their heads."""
        return self.supported_family in (None, spec.family)

    def require_fit(self, spec: Spec) -> None:
        """Raise RecipeError for a model that does not fit."""
        if not self.fits(spec):
            advice = self.advice()
            purpose = advice.purpose or f"trains {self.supported_family} models"
            raise RecipeError(
                f'objective.kind = "{self.kind}" {purpose}: take {advice.suggested}; this model is '
                f'of kind "{spec.kind}", {spec.family}.'
            )

    def require_head(self, spec: Spec) -> Head:
        """Return the model's head that is trained. Raises RecipeError where there is none."""
        for head in spec.heads:
            if head.kind == self.head:
                return head
        known = ", ".join(head.kind for head in spec.heads) or "none"
        raise RecipeError(
            f'objective.kind = "{self.kind}" trains a head of kind "{self.head}"; this model has: '
            f'{known}. Encoders are trained with "masked", decoders with "causal".'
        )

    def check_tokens(self, vocabulary: Vocabulary) -> None:
        """Raise RecipeError where the vocabulary lacks a special token."""
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
        """The special tokens of its own, whose names in the text of a run are control tokens."""
        return [
            name for name in self.special_tokens if role_of(name) is None and name not in SENTINELS
        ]

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError where it does not read rows that are made so, by keys of `[data]`.

        `is_mixed`: there are several sources.
        """
        if separate_documents and not self.separates_documents:
            raise RecipeError(
                f'data.separate_documents has no effect with objective.kind = "{self.kind}", which '
                'reads whole rows: leave it out, or set data.packing = "truncate" for one document '
                "per row."
            )

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Keys of `[tokenizer]` that differ from the defaults: its kind and special tokens."""
        return {}

    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of all models that are trained, for estimates of memory and FLOPs."""
        return (spec,)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Return the module to train, with random weights."""
        return build(spec, seed=seed, device=device)

    def models(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the models that a run saves, by subfolder; "" is the run folder itself."""
        return {"": module}  # type: ignore[dict-item]

    def untie_weights(self, module: nn.Module) -> None:
        """Make each of `models` whole, to be loaded and saved, where they share weights."""

    def tie_weights(self, module: nn.Module) -> None:
        """Let them share weights again, to be trained."""

    def decoder_start(self, vocabulary: Vocabulary) -> int | None:
        """The first decoder input of an encoder-decoder trained so; None for other models."""
        return None

    def fit(self, rows: Rows, vocabulary: Vocabulary) -> Self:
        """Return the objective fitted to the training text, before the first step."""
        return self

    @abstractmethod
    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return inputs and labels of rows of a step: a pure function of its arguments."""

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of labels of every term of the loss, by which its sum is divided."""
        return {"loss": batch.num_labels}

    def term_weights(self) -> Mapping[str, float]:
        """The weight of every term in the loss that is minimised; 1 where a term is left out."""
        return {}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Nats summed over the labels of the batch, term by term; `label_counts` has their number.

        What layers add is one more term (`read`).

        In evaluation mode (`model.training` is False) without label smoothing.
        """
        return token_losses(model, batch)

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """A prompt made of a held-out text and the model's output, for the report.

        Here: the beginning of the text with its middle word masked, and predictions for it.
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

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """The command shown at the end of a run, after `trivium`; `text` is a held-out one."""
        mask = self.advice().mask
        if mask is None:
            return f"generate {run} {shlex.quote(beginning(text, 6) or 'Once upon a time')}"
        prompt, _ = mask_middle(text, mask) or (f"The {mask} was closed.", "")
        return f"fill-mask {run} {shlex.quote(prompt)}"
