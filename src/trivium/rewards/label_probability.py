"""How probable a classifier finds a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PrivateAttr

from trivium.errors import RecipeError, did_you_mean
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.rewards import RewardFunction, Sample


class LabelProbability(RewardFunction):
    """The probability of a label of a response; 0 of an empty response."""

    kind: Literal["label"] = "label"
    model: str = Field(description="classifier: a run, a Hugging Face folder or its name there")
    label: str = Field(description="name of the label")
    with_prompt: bool = Field(False, description="whether the classifier reads the prompt, too")

    _lm: LanguageModel | None = PrivateAttr(None)

    def open(self) -> None:
        """Load the classifier, and see that it has the label."""
        if self._lm is not None:
            return
        lm = load(self.model)
        if "classify" not in lm.capabilities:
            raise RecipeError(
                f"{self.model} is no classifier: `trivium finetune classification` makes one."
            )
        names = lm.classify("a text").scores
        if self.label not in names:
            known = ", ".join(names) or "none: its answers are numbers"
            raise RecipeError(
                f'the classifier {self.model} has no label "{self.label}"; it has {known}.'
                f"{did_you_mean(self.label, names)}"
            )
        self._lm = lm

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """From 0 to 1."""
        self.open()
        assert self._lm is not None
        texts = [one.text if self.with_prompt else one.response for one in samples]
        answers = iter(self._lm.classify([text for text in texts if text.strip()]))
        return [next(answers).scores[self.label] if text.strip() else 0.0 for text in texts]
