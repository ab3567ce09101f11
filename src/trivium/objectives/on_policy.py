"""Objectives whose steps learn from samples that the model draws itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pydantic import Field

from trivium.data.batch import Batch
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.objectives.base import LabelledObjective

Divided = Callable[[Callable[[Sequence[Any]], list[Any]], Sequence[Any]], list[Any]]
"""(function, items) -> function(items), of which each process of a run has computed a part."""


class OnPolicyObjective(LabelledObjective):
    """A labelled objective whose examples are prompts; a step draws its samples."""

    rolls_out: ClassVar[bool] = True
    updates: int = Field(1, gt=0, description="updates of the weights from the samples of a step")
    group: int = Field(8, gt=0, description="responses to a prompt")
    max_new_tokens: int = Field(64, gt=0, description="tokens of a response at most")

    @property
    @abstractmethod
    def has_reference(self) -> bool:
        """Whether log-probabilities of the model as it was before the run are needed."""

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Code of the user's that it runs: a run is resumed with the same alone."""

    @abstractmethod
    def rollout(
        self,
        lm: LanguageModel,
        model: LanguageModule,
        batches: Sequence[Batch],
        seed: int,
        divided: Divided,
    ) -> Batch:
        """The samples for a step's prompts: a pure function of (weights, prompts, seed).

        `model` is what is trained, of which that of `lm` is a part. All processes have the same
        prompts and get the same samples, which they have `divided` among them.
        """
