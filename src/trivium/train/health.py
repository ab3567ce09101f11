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


# Steps after the warm-up in which a model learns the frequencies of tokens: about three times what
# was measured. Those in which it learns to use their context are `Objective.steps_to_context`.
_STEPS_TO_BASELINE = 200
# Tokens of a step of the smallest presets: with smaller steps a run needs more of them.
_STEP_TOKENS = 1024
# Nats above or below the baseline that count as being there.
_MARGIN = 0.25
# Nats by which the loss of so many log lines in a row is above the lowest one; healthy runs rose by
# a third of it.
_RISE, _LINES = 1.0, 3


class LossMonitor:
    """Reads the records of a run on text one by one, and says once that it is stuck, or diverges.

    Args:
        unigram_loss: the unigram baseline in nats per token.
        patience: steps after the warm-up until a loss near it is a bad sign.
    """

    def __init__(self, unigram_loss: float, patience: float) -> None:
        self.unigram_loss, self._patience = unigram_loss, patience
        self._rate = 0.0
        self._settled: tuple[int, int] | None = None
        """Step and tokens of the first record after the warm-up."""
        self._lowest, self._lines_above = math.inf, 0
        self._said: set[str] = set()

    def warning(self, record: Mapping[str, Any]) -> str | None:
        """What is wrong with the loss so far, and its usual causes; None: nothing new."""
        if "train_loss" not in record:
            return None
        loss, step = record["train_loss"], record["step"]
        if self._settled is None and record["lr"] <= self._rate:
            self._settled = step, record["tokens"]
        self._rate = record["lr"]
        self._lowest = min(self._lowest, loss)
        self._lines_above = self._lines_above + 1 if loss > self._lowest + _RISE else 0
        if self._lines_above == _LINES:
            return self._once(
                "diverges",
                f"the training loss rose to {loss:.2f} from {self._lowest:.2f}: the run diverges. "
                "Usual causes: a learning rate too high for this model, too short a warm-up, or "
                "damaged text. Halve optimizer.lr, lengthen schedule.warmup, or set "
                "train.skip_spikes = 10.",
            )
        passed = self._steps_since_warmup(record)
        if passed >= _STEPS_TO_BASELINE and loss > self.unigram_loss + _MARGIN:
            return self._once("stuck", self._stuck(loss, passed, "above"))
        if passed >= self._patience and loss > self.unigram_loss - _MARGIN:
            state = "hardly below" if loss < self.unigram_loss else "no better than"
            return self._once("stuck", self._stuck(loss, passed, state))
        return None

    def _steps_since_warmup(self, record: Mapping[str, Any]) -> float:
        """Steps of at least `_STEP_TOKENS`; with smaller ones that many tokens are a step."""
        if self._settled is None:
            return 0.0
        step, tokens = self._settled
        return min(record["step"] - step, (record["tokens"] - tokens) / _STEP_TOKENS)

    def _stuck(self, loss: float, passed: float, state: str) -> str:
        baseline = f"the unigram baseline ({self.unigram_loss:.2f})"
        return (
            f"the training loss {loss:.2f} is {state} {baseline} {passed:.0f} steps after the "
            "warm-up: the run is stuck. Usual causes: a learning rate far from the default, text "
            "of few lines that repeat, a vocabulary too large for it, or a post-norm model, which "
            "needs longer."
        )

    def _once(self, name: str, message: str) -> str | None:
        if name in self._said:
            return None
        self._said.add(name)
        return message
