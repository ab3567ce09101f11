"""What warns of a run that goes wrong by the terms of its objective."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from trivium.messages import english

# In nats: a first loss so much above that of equal models, a loss that near to it after so many
# steps, and log ratios of the good responses so far below 0 are bad signs.
_ABOVE, _STILL, _PATIENCE, _FALLEN = 0.05, 1e-3, 50, 1.0
# Of policies: a share of groups without a difference, nats a text from the reference, a share of
# texts that end, and shares of the longest length that are short and long.
_SAME, _FAR, _ENDED, _SHORT, _LONG = 0.8, 20.0, 0.5, 0.6, 0.9
# A reward falls where the mean of so many records is so many standard errors below the first ones.
_RECORDS, _ERRORS = 5, 4.0


class Monitor(ABC):
    """Looks in every record of a run for signs that the run goes wrong; says each sign once."""

    term: ClassVar[str]
    """A key that the records of such a run have."""

    def __init__(self) -> None:
        self.first: Mapping[str, Any] = {}
        self._said: set[str] = set()

    def warning(self, record: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the run, and what helps; None: nothing that is not said yet."""
        if self.term not in record:
            return None
        self.first = self.first or record
        for sign, values in self.signs(record):
            if sign not in self._said:
                self._said.add(sign)
                return english(f"warning.{sign}", **values)
        return None

    @abstractmethod
    def signs(self, record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what is wrong by a record: a name in `[warning]` of the catalog, and its values."""


class PreferenceMonitor(Monitor):
    """Reads the records of a run of DPO.

    A loss that looks well says little: it falls, too, where both responses become rarer.
    """

    term = "train_preference"
    good: ClassVar[str] = "chosen"
    start: ClassVar[tuple[str, float]] = "ln 2", math.log(2)
    weight: ClassVar[str] = "sft_weight"

    def signs(self, record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """See `Monitor`."""
        loss, good, (name, start) = record[self.term], record[f"train_{self.good}"], self.start
        if record is self.first and loss > start + _ABOVE:
            yield "differs_from_reference", {"loss": loss, "name": name, "start": start}
        if record["step"] >= _PATIENCE and abs(loss - start) < _STILL:
            yield "nothing_learned", {"name": name, "steps": record["step"]}
        if good < -_FALLEN:
            values = {"good": self.good, "gain": good, "weight": self.weight}
            yield "good_become_rarer", values


class KTOMonitor(PreferenceMonitor):
    """Reads the records of a run of KTO with both weights 1."""

    term = "train_kto"
    good = "desirable"
    start = "1/2", 0.5
    weight = "desirable_weight"


class PolicyMonitor(Monitor):
    """Reads the records of a policy run.

    A reward that grows says little: it grows, too, where the model finds a fault of it.

    Args:
        max_new_tokens: of a response.
    """

    term = "train_policy"

    def __init__(self, max_new_tokens: int) -> None:
        super().__init__()
        self.max_new_tokens = max_new_tokens
        self._rewards: list[float] = []

    def signs(self, record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """See `Monitor`."""
        self._rewards.append(record["train_reward"])
        first, now = (
            {name.removeprefix("train_"): value for name, value in one.items()}
            for one in (self.first, record)
        )
        if now.get("frac_reward_zero_std", 0) > _SAME:
            yield "same_rewards", {"share": now["frac_reward_zero_std"], "reward": now["reward"]}
        if now.get("kl", 0.0) > _FAR:
            yield "far_from_reference", {"distance": now["kl"]}
        elif now["distinct_2"] < first["distinct_2"] / 2:
            yield "responses_repeat", {"share": now["distinct_2"]}
        short, long = _SHORT * self.max_new_tokens, _LONG * self.max_new_tokens
        grown = first["length"] < short and now["length"] > long
        if grown and now["reward"] > first["reward"]:
            yield "responses_grew", {"first": first["length"], "now": now["length"]}
        if first["terminated"] < _ENDED:
            yield "responses_cut", {"share": now["terminated"], "size": self.max_new_tokens}
        parts = self._rewards[:_RECORDS], self._rewards[_RECORDS:][-_RECORDS:]
        if len(parts[1]) == _RECORDS:
            before, after = map(statistics.fmean, parts)
            variance = sum(map(statistics.variance, parts))
            if before - after > _ERRORS * math.sqrt(variance / _RECORDS):
                yield "reward_falls", {"before": before, "after": after}
