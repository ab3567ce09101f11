"""Rewards: what a response of a model is worth. Each kind is one class in a module here."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from trivium.choice import Choice, import_submodules
from trivium.config import Config
from trivium.data.batch import Floats
from trivium.data.records import Record
from trivium.errors import RecipeError, shorten


@dataclass(frozen=True, slots=True)
class Sample:
    """A response that a model has drawn.

    Args:
        prompt: its text; of messages their contents, a line each.
        response: without spaces around it.
        text: both as one text.
        messages: the conversation with the response, where the prompt is messages.
        record: the columns of the prompt's row.
        ended: the model ended it; else it is cut.
    """

    prompt: str
    response: str
    text: str
    record: Record
    messages: tuple[dict[str, str], ...] = ()
    ended: bool = True

    def __str__(self) -> str:
        return f'{self.record.where}, response "{shorten(self.response)}"'


class RewardFunction(Choice, Config, ABC):
    """A number for every response.

    A subclass has `kind: Literal["name"] = "name"`, which recipes call it by, and a field with a
    description for every key.
    """

    weight: float = Field(
        1.0, allow_inf_nan=False, description="what it is multiplied by in the sum of all rewards"
    )

    @property
    def files(self) -> tuple[str, ...]:
        """The user's code that the reward runs. A run is resumed only with the same code."""
        return ()

    def open(self) -> None:
        """Load what it needs, before the run begins.

        Raises RecipeError or another TriviumError where that is missing or does not fit.
        """

    def check(self, record: Record) -> None:
        """Raise DataError, with file and line, where a prompt's row lacks what it compares with."""

    @abstractmethod
    def scores(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return the reward of every sample."""


def reward_names(rewards: Sequence[RewardFunction]) -> tuple[str, ...]:
    """What rewards are called in metrics: "exact", and "exact_2" for another of that kind."""
    seen: Counter[str] = Counter()
    names = []
    for one in rewards:
        seen[one.kind] += 1
        names.append(one.kind if seen[one.kind] == 1 else f"{one.kind}_{seen[one.kind]}")
    return tuple(names)


def all_scores(rewards: Sequence[RewardFunction], samples: Sequence[Sample]) -> Floats:
    """Every reward of every sample, without its weight: float64 [N, R].

    Raises:
        RecipeError: a reward that is not one finite number for every sample; it names the sample.
    """
    columns = []
    for reward in rewards:
        values = list(reward.scores(samples))
        if len(values) != len(samples):
            raise RecipeError(
                f'the reward of kind "{reward.kind}" has {len(values)} values for {len(samples)} '
                f"responses, of which the first is that of {samples[0]}."
            )
        for value, sample in zip(values, samples):
            if not isinstance(value, int | float | np.number) or not math.isfinite(value):
                raise RecipeError(
                    f'the reward of kind "{reward.kind}" is {value!r}, which is no finite number, '
                    f"for {sample}."
                )
        columns.append(values)
    return np.array(columns, dtype=np.float64).reshape(len(rewards), len(samples)).T


import_submodules(__name__, __path__)
