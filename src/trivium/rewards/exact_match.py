"""The reward "exact": whether a response is equal to the correct answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from trivium.data.records import Record
from trivium.errors import DataError
from trivium.rewards import RewardFunction, Sample


class ExactMatch(RewardFunction):
    """A reward of 1 if the response equals the correct answer, otherwise 0.

    Leading and trailing whitespace is ignored. The reward is 0 if the response reached the maximum
    length.
    """

    kind: Literal["exact"] = "exact"
    column: str = Field("answer", description="column of the correct answer, a text or a number")

    def check_record(self, record: Record) -> None:
        """Raise DataError if the record has no correct answer."""
        if not self._read_answer(record):
            raise DataError(f"{record.locate(self.column)} is blank: nothing equals it.")

    def compute_rewards(self, samples: Sequence[Sample]) -> list[float]:
        """Return 1.0 for every response that equals the correct answer, otherwise 0.0."""
        return [
            float(one.ended and one.response == self._read_answer(one.record)) for one in samples
        ]

    def _read_answer(self, record: Record) -> str:
        """Return the correct answer of a record as text, or "" if there is none."""
        option = """--set 'objective.rewards=[{kind="exact", column="NAME"}]'"""
        value = record.value(self.column, option)
        return "" if value is None or value != value else str(value).strip()  # NaN is not equal
