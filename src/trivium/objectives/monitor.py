"""What warns of a run that goes wrong by the terms of its objective."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

_LN_2 = math.log(2)
# In nats: a first loss so much above ln 2, a loss that near to it after so many steps, and log
# ratios of the chosen responses so far below 0 are bad signs.
_ABOVE, _STILL, _PATIENCE, _FALLEN = 0.05, 1e-3, 50, 1.0


class Monitor(Protocol):
    """Reads the records of a run, one by one."""

    def warning(self, record: Mapping[str, Any]) -> str | None:
        """What is wrong with the run, and what helps; None: nothing, or it was said."""
        ...


class PreferenceMonitor:
    """Reads the records of a run of DPO; says once of each sign that it goes wrong.

    A loss that looks well says little: it falls, too, where both responses become rarer.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warning(self, record: Mapping[str, Any]) -> str | None:
        """See `Monitor`."""
        if "train_preference" not in record:
            return None
        loss, chosen = record["train_preference"], record["train_chosen"]
        if not self._said and loss > _LN_2 + _ABOVE:
            return self._once(
                "first",
                f"the first loss is {loss:.3f}, not ln 2 = {_LN_2:.3f}: the model differs from its "
                "reference before it has learned. Usual cause: dropout. Set model.dropout = 0 and "
                "adapter.dropout = 0.",
            )
        self._said.add("read")
        if record["step"] >= _PATIENCE and abs(loss - _LN_2) < _STILL:
            return self._once(
                "still",
                f"the loss is still ln 2 after {record['step']} steps: nothing is learned. Usual "
                "causes: a learning rate near 0, frozen weights, or responses that are the same "
                "once they are cut to data.length. Raise optimizer.lr.",
            )
        if chosen < -_FALLEN:
            return self._once(
                "fallen",
                f"the chosen responses are less probable than at the start ({chosen:.1f} nats): "
                "good answers become rarer, although the loss falls. Lower optimizer.lr, or raise "
                "objective.sft_weight or objective.beta.",
            )
        return None

    def _once(self, sign: str, text: str) -> str | None:
        known = sign in self._said
        self._said |= {sign, "read"}
        return None if known else text
