"""Reward functions, which score the responses of a model. Each module contains one kind."""

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
    """A response that a model has generated for a prompt: the input of a reward function.

    Args:
        prompt: the text of the prompt. For a conversation, the contents of its messages, one per
            line.
        response: the response without leading and trailing whitespace.
        text: the prompt and the response as one text.
        record: the columns of the prompt's record.
        messages: the conversation including the response. Empty if the prompt is a text.
        ended: whether the model ended the response. False if it reached the maximum length.
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
    """A reward function and its configuration. It scores each response with a number.

    A subclass has the attribute `kind: Literal["name"] = "name"`, which is the name of the reward
    in recipes. It also has one field with a description for every recipe key.
    """

    weight: float = Field(
        1.0, allow_inf_nan=False, description="weight of the reward in the sum of all rewards"
    )

    @property
    def files(self) -> tuple[str, ...]:
        """The user's Python files that the reward runs.

        A run can only be resumed if these files have not changed.
        """
        return ()

    def open(self) -> None:
        """Load the files or models that the reward needs, before the run starts.

        Raises RecipeError or another TriviumError if they are missing or unsuitable.
        """

    def check_record(self, record: Record) -> None:
        """Raise DataError, with file and line, if a record lacks data that the reward needs."""

    @abstractmethod
    def compute_rewards(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return the reward of every sample."""


def build_reward_names(rewards: Sequence[RewardFunction]) -> tuple[str, ...]:
    """Return the names of the rewards in the metrics: the kind of each reward, such as "exact".

    If a kind occurs several times, its second reward has the suffix "_2", the third "_3", and so
    on.
    """
    counts: Counter[str] = Counter()
    names = []
    for one in rewards:
        counts[one.kind] += 1
        names.append(one.kind if counts[one.kind] == 1 else f"{one.kind}_{counts[one.kind]}")
    return tuple(names)


def compute_scores(rewards: Sequence[RewardFunction], samples: Sequence[Sample]) -> Floats:
    """Compute the unweighted values of R rewards for each of N samples, float64 [N, R].

    Raises:
        RecipeError: a reward function does not return one finite number for every sample. The
            message names the sample.
    """
    columns = []
    for reward in rewards:
        values = list(reward.compute_rewards(samples))
        if len(values) != len(samples):
            raise RecipeError(
                f'the reward of kind "{reward.kind}" has {len(values)} values for {len(samples)} '
                f"responses; the first one is for {samples[0]}."
            )
        for value, sample in zip(values, samples):
            if not isinstance(value, int | float | np.number) or not math.isfinite(value):
                raise RecipeError(
                    f'the reward of kind "{reward.kind}" is {value!r}, not a finite number, '
                    f"for {sample}."
                )
        columns.append(values)
    return np.array(columns, dtype=np.float64).reshape(len(rewards), len(samples)).T


import_submodules(__name__, __path__)
