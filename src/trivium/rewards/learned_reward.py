"""What a model of rewards says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PrivateAttr

from trivium.errors import RecipeError
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.rewards import RewardFunction, Sample
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate


class LearnedReward(RewardFunction):
    """The number that a classifier of one number has for a prompt with its response.

    It reads both as it was trained (`finetune reward`): as one text, or messages as its chat
    template writes them.
    """

    kind: Literal["model"] = "model"
    model: str = Field(description="run of `finetune reward`, or a Hugging Face folder or name")

    _lm: LanguageModel | None = PrivateAttr(None)

    def open(self) -> None:
        """Load the model, and see that its answer is a number."""
        if self._lm is not None:
            return
        lm = load(self.model)
        if "classify" not in lm.capabilities:
            raise RecipeError(
                f"{self.model} is no reward model: `trivium finetune reward` makes one."
            )
        if lm.classify("a text").scores:
            raise RecipeError(
                f"{self.model} has labels, not one number: take the reward of kind "
                '"label", which is the probability of a label.'
            )
        self._lm = lm

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """Any numbers."""
        self.open()
        assert self._lm is not None
        template = self._lm.settings.chat_template or PLAIN_TEMPLATE
        write = ChatTemplate.of(template, self._lm.text_tokenizer).render
        texts = [write(one.messages) if one.messages else one.text for one in samples]
        return [one.score for one in self._lm.classify(texts)]
