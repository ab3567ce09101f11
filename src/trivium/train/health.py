"""Whether a run learns: spikes of the gradient norm, and losses that stand still or rise.

The bounds of the loss follow from the unigram baseline, which is known of every run on text, and
from what `benchmarks/loss_bands.py` measures with the smallest presets; larger ones need fewer
steps, since theirs have more tokens.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.objectives import Monitor
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch
from trivium.train.run_folder import RunFolder

SPIKE_WINDOW = 100
"""Steps whose gradient norms a new one is compared with."""


def is_spike(norm: float, last_norms: Sequence[float], factor: float) -> bool:
    """Whether a gradient norm is more than `factor` times the median of the last ones.

    While there are fewer than `SPIKE_WINDOW` only a norm that is not finite is one, as long as most
    of the last ones are finite. The window has spikes, too: norms that stay high are none for long.
    """
    finite = [one for one in last_norms if math.isfinite(one)]
    if not math.isfinite(norm):
        return 2 * len(finite) > len(last_norms)
    return len(last_norms) >= SPIKE_WINDOW and norm > factor * statistics.median(finite)


# Tokens of a step of the smallest presets: with smaller steps a run needs more of them.
_STEP_TOKENS = 1024
# Nats below the baseline from which on a model has learned more than frequencies.
_MARGIN = 0.25
# Nats by which the loss of so many log lines in a row is above the lowest one; healthy runs rose by
# a third of it.
_RISE, _LINES = 1.0, 3


class LossMonitor:
    """Reads the records of a run on text one by one; says once that it is stuck, or diverges.

    Args:
        unigram_loss: the unigram baseline in nats per token.
        patience: steps after the warm-up until a loss near it is a bad sign.
    """

    def __init__(self, unigram_loss: float, patience: float) -> None:
        self.unigram_loss, self.patience = unigram_loss, patience
        self._before: Mapping[str, Any] = {"step": 0, "tokens": 0, "lr": 0.0}
        self._passed = 0.0  # steps after the warm-up, of at least `_STEP_TOKENS`
        self._lowest, self._lines_above = math.inf, 0
        self._stuck = self._diverged = False

    def warning(self, record: Mapping[str, Any]) -> str | None:
        """What is wrong with the loss, and its usual causes; None: nothing, or it was said."""
        if "train_loss" not in record or self._diverged:
            return None
        loss, before, self._before = record["train_loss"], self._before, record
        if record["lr"] <= before["lr"]:
            tokens = record["tokens"] - before["tokens"]
            self._passed += min(record["step"] - before["step"], tokens / _STEP_TOKENS)
        self._lowest = min(self._lowest, loss)
        self._lines_above = self._lines_above + 1 if loss > self._lowest + _RISE else 0
        self._diverged = self._lines_above == _LINES
        if self._diverged:
            return english("warning.diverges", now=loss, lowest=self._lowest)
        if not self._stuck and self._passed >= self.patience and loss > self.unigram_loss - _MARGIN:
            self._stuck = True
            return english("warning.stuck", now=loss, unigram=self.unigram_loss, steps=self._passed)
        return None


class WarnOfRecords(Callback):
    """Adds the warnings of a monitor to the records of a run, for the callbacks after it.

    Args:
        run: the folder of the run.
        monitor: reads records, and returns each warning once.
    """

    def __init__(self, run: RunFolder, monitor: Monitor | LossMonitor) -> None:
        self.run, self.monitor = run, monitor

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Read the records of a resumed run, whose warnings are not repeated."""
        for record in self.run.read_metrics():
            self.monitor.warning(record)

    def on_log(self, record: dict[str, Any]) -> None:
        """Add the `warning` of a record, if there is one."""
        if warning := self.monitor.warning(record):
            record["warning"] = warning

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Add the `warning` of a record, if there is one."""
        self.on_log(record)
