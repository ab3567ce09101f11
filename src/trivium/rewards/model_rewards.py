"""Rewards that a classifier computes: its number, or the probability of a label."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr

from trivium.errors import RecipeError, did_you_mean
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.rewards import RewardFunction, Sample
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate


class ClassifierReward(RewardFunction):
    """A reward that a classifier computes. The classifier is loaded once."""

    task: ClassVar[str] = "classification"
    """The command that makes such a model is `finetune` with this task."""
    model: str = Field(description="classifier: a run, a Hugging Face folder or its name there")

    _lm: LanguageModel | None = PrivateAttr(None)

    def open(self) -> None:
        """Load the model, and check that its answers are of the right kind."""
        self.load()

    def load(self) -> LanguageModel:
        """Return the model, which is loaded by the first call."""
        if self._lm is None:
            lm = load(self.model)
            if "classify" not in lm.capabilities:
                raise RecipeError(
                    f"{self.model} does not classify: take a model that `trivium finetune "
                    f"{self.task}` has made."
                )
            self.check_labels(lm.classify("a text").scores)
            self._lm = lm
        return self._lm

    @abstractmethod
    def check_labels(self, labels: Collection[str]) -> None:
        """Raise RecipeError where the labels of the model, none for a number, do not fit."""


class LabelProbability(ClassifierReward):
    """The probability of a label of a response; 0 of an empty response."""

    kind: Literal["label"] = "label"
    label: str = Field(description="name of the label")
    with_prompt: bool = Field(False, description="whether the classifier reads the prompt, too")

    def check_labels(self, labels: Collection[str]) -> None:
        """Raise RecipeError where the model does not have the label."""
        if self.label not in labels:
            known = ", ".join(labels) or "none: its answers are numbers"
            raise RecipeError(
                f'the classifier {self.model} has no label "{self.label}"; it has {known}.'
                f"{did_you_mean(self.label, labels)}"
            )

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """Return numbers from 0 to 1."""
        texts = [one.text if self.with_prompt else one.response for one in samples]
        answers = iter(self.load().classify([text for text in texts if text.strip()]))
        return [next(answers).scores[self.label] if text.strip() else 0.0 for text in texts]


class LearnedReward(ClassifierReward):
    """The number that a classifier of one number has for a prompt with its response.

    It reads both as it was trained (`finetune reward`): as one text, or messages as its chat
    template writes them.
    """

    task: ClassVar[str] = "reward"
    kind: Literal["model"] = "model"
    model: str = Field(description="run of `finetune reward`, or a Hugging Face folder or name")

    def check_labels(self, labels: Collection[str]) -> None:
        """Raise RecipeError where the answer is a label, not a number."""
        if labels:
            raise RecipeError(
                f"{self.model} has labels, not one number: take the reward of kind "
                '"label", which is the probability of a label.'
            )

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """Return the numbers, which have no bounds."""
        lm = self.load()
        template = lm.settings.chat_template or PLAIN_TEMPLATE
        write = ChatTemplate.of(template, lm.text_tokenizer).render
        texts = [write(one.messages) if one.messages else one.text for one in samples]
        return [one.score for one in lm.classify(texts)]
