"""Rewards from a model: the score of a reward model, or the probability of a classifier's label."""

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
    """Base class of rewards that a classifier or a reward model computes."""

    task: ClassVar[str] = "classification"
    """The task of `finetune` that trains such a classifier."""
    model: str = Field(description="classifier: a run, or a Hugging Face folder or name")

    _lm: LanguageModel | None = PrivateAttr(None)
    """The loaded classifier."""

    def open(self) -> None:
        """Load the classifier and check its labels.

        Raises RecipeError if the classifier is unsuitable.
        """
        self._load_classifier()

    def _load_classifier(self) -> LanguageModel:
        """Return the classifier. The first call loads it and checks its labels."""
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
        """Raise RecipeError if this kind of reward cannot use a classifier with these labels.

        `labels` is empty for a regression model.
        """


class LabelProbability(ClassifierReward):
    """A reward equal to the probability that a classifier assigns to a given label.

    The reward is 0 for an empty text.
    """

    kind: Literal["label"] = "label"
    label: str = Field(description="name of the label")
    with_prompt: bool = Field(False, description="whether the classifier reads the prompt, too")

    def check_labels(self, labels: Collection[str]) -> None:
        """Raise RecipeError if the classifier does not have the label."""
        if self.label not in labels:
            known = ", ".join(labels) or "none: its predictions are numbers"
            raise RecipeError(
                f'the classifier {self.model} has no label "{self.label}"; it has {known}.'
                f"{did_you_mean(self.label, labels)}"
            )

    def compute_rewards(self, samples: Sequence[Sample]) -> list[float]:
        """Return the probability of the label, from 0 to 1, for every sample."""
        texts = [one.text if self.with_prompt else one.response for one in samples]
        answers = iter(self._load_classifier().classify([text for text in texts if text.strip()]))
        return [next(answers).scores[self.label] if text.strip() else 0.0 for text in texts]


class LearnedReward(ClassifierReward):
    """A reward equal to the score that a reward model predicts for a prompt with its response.

    The input has the same format as in the training of the reward model (`finetune reward`): one
    text, or messages in its chat template.
    """

    task: ClassVar[str] = "reward"
    kind: Literal["model"] = "model"
    model: str = Field(description="run of `finetune reward`, or a Hugging Face folder or name")

    def check_labels(self, labels: Collection[str]) -> None:
        """Raise RecipeError if the classifier predicts labels instead of a number."""
        if labels:
            raise RecipeError(
                f"{self.model} has labels, not one number: take the reward of kind "
                '"label", which is the probability of a label.'
            )

    def compute_rewards(self, samples: Sequence[Sample]) -> list[float]:
        """Return the score of every sample. Scores are unbounded."""
        lm = self._load_classifier()
        template = lm.settings.chat_template or PLAIN_TEMPLATE
        render = ChatTemplate.of(template, lm.text_tokenizer).render
        texts = [render(one.messages) if one.messages else one.text for one in samples]
        return [one.score for one in lm.classify(texts)]
