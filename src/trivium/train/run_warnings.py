"""Warnings about runs that go wrong: a table of conditions, and the callback that checks them.

After every log record, the conditions in `WARNINGS` are checked. Each condition is a function of
the history of the run. If the condition is met, the function returns the values for its message in
`[warning]` of the message catalogue; otherwise, it returns None. Each warning is logged only once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.objectives import Objective
from trivium.objectives.kto import KTO
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.preference import PreferenceOptimization
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch
from trivium.train.run_folder import RunFolder

# A run is stuck while its loss is not this many nats below the unigram baseline. Steps with fewer
# tokens than those of the smallest presets count as a fraction of a step.
_MARGIN, _STEP_TOKENS = 0.25, 1024
# A run diverges if this many consecutive log records are this many nats above the lowest loss. The
# losses of healthy runs rose by a third of that (`benchmarks/loss_bands.py`).
_LINES, _RISE = 3, 1.0
# Preferences, in nats: the first loss is too high; the loss does not move until this step; the
# preferred responses become less probable.
_ABOVE, _UNMOVED, _UNMOVED_STEPS, _FALLEN = 0.05, 1e-3, 50, 1.0
# Policies: the largest fraction of groups with equal rewards, nats per text from the reference, the
# smallest fraction of terminated responses, and fractions of the maximum length.
_EQUAL, _FAR, _TERMINATED, _SHORT, _LONG = 0.8, 20.0, 0.5, 0.6, 0.9
# The reward falls if the mean of this many last log records is this many standard errors below the
# mean of the first ones.
_REWARDS, _ERRORS = 5, 4.0


@dataclass
class RunHistory:
    """The history of a run that warning conditions check: its objective and a summary of its log.

    Args:
        objective: the first objective of the run.
        unigram_loss: the unigram baseline in nats per token; None to skip the comparison with it.
        patience: the number of steps after the warm-up before a loss near the baseline triggers a
            warning.
    """

    objective: Objective
    unigram_loss: float | None = None
    patience: float = math.inf
    given: set[str] = field(default_factory=set)
    """The names of the warnings that have been logged."""
    first: Mapping[str, Any] = field(default_factory=dict)
    """The first log record."""
    last: Mapping[str, Any] = field(default_factory=dict)
    """The last log record."""
    lowest_loss: float = math.inf
    lines_above: int = 0
    """How many log records in a row, up to the last, are `_RISE` or more above the lowest loss."""
    steps_after_warmup: float = 0.0
    rewards: list[float] = field(default_factory=list)
    """The rewards of a policy in its first `_REWARDS` and its last `_REWARDS` log records."""

    def _add_log_record(self, record: Mapping[str, Any]) -> None:
        """Add a log record, which must contain a `train_loss`, to the summary of the log."""
        before = self.last or {"step": 0, "tokens": 0, "lr": 0.0}
        self.first, self.last = self.first or record, record
        loss = record["train_loss"]
        if record["lr"] <= before["lr"]:
            tokens = record["tokens"] - before["tokens"]
            self.steps_after_warmup += min(record["step"] - before["step"], tokens / _STEP_TOKENS)
        self.lowest_loss = min(self.lowest_loss, loss)
        self.lines_above = self.lines_above + 1 if loss > self.lowest_loss + _RISE else 0
        if "train_reward" in record:
            self.rewards.append(record["train_reward"])
            if len(self.rewards) > 2 * _REWARDS:
                del self.rewards[_REWARDS]

    def find_warning(self, record: Mapping[str, Any]) -> str | None:
        """Add a record of `metrics.jsonl` to the history, and check for a new warning.

        Returns the text of the first new warning, or None if there is no new warning.
        """
        if "train_loss" not in record:
            return None
        self._add_log_record(record)
        for name, condition in WARNINGS.items():
            if name not in self.given and (values := condition(self)) is not None:
                self.given.add(name)
                return english(f"warning.{name}", **values)
        return None


Values = dict[str, Any] | None
"""The values to insert into a warning message, or None if the warning does not apply."""


def _check_divergence(run: RunHistory) -> Values:
    """Return the message values if the last losses are all far above the lowest loss."""
    if run.unigram_loss is None or run.lines_above < _LINES:
        return None
    return {"now": run.last["train_loss"], "lowest": run.lowest_loss}


def _check_stuck_loss(run: RunHistory) -> Values:
    """Return the message values if the loss stays near the unigram baseline after warm-up."""
    loss, unigram = run.last["train_loss"], run.unigram_loss
    if unigram is None or "diverges" in run.given or run.steps_after_warmup < run.patience:
        return None
    if loss <= unigram - _MARGIN:
        return None
    return {"now": loss, "unigram": unigram, "steps": run.steps_after_warmup}


@dataclass(frozen=True)
class _PreferenceRun:
    """The metrics that preference-training warnings check: the loss and its initial value.

    Args:
        loss: the current loss.
        start_name: the name of the initial value in messages, such as "ln 2".
        start: the initial value: the loss of a model that equals the reference model.
        preferred: the name of the preferred responses: "chosen" or "desirable".
        weight: the field of the objective to increase so that preferred responses become more
            probable.
    """

    loss: float
    start_name: str
    start: float
    preferred: str
    weight: str


def _get_preference_metrics(run: RunHistory) -> _PreferenceRun | None:
    """Return the preference metrics of a DPO run, or of a KTO run with equal weights.

    Returns None for other runs, and if the last log record has no preference loss.
    """
    objective, last = run.objective, run.last
    if isinstance(objective, KTO) and "train_kto" in last:
        equal = objective.desirable_weight == objective.undesirable_weight == 1
        metrics = _PreferenceRun(last["train_kto"], "1/2", 0.5, "desirable", "desirable_weight")
        return metrics if equal else None
    if isinstance(objective, PreferenceOptimization) and "train_preference" in last:
        is_dpo = objective.loss_type == "sigmoid" and not objective.label_smoothing
        loss = last["train_preference"]
        return _PreferenceRun(loss, "ln 2", math.log(2), "chosen", "sft_weight") if is_dpo else None
    return None


def _check_reference_mismatch(run: RunHistory) -> Values:
    """Return the message values if the first loss is not that of the reference model."""
    pairs = _get_preference_metrics(run)
    if pairs is None or run.last is not run.first or pairs.loss <= pairs.start + _ABOVE:
        return None
    return {"loss": pairs.loss, "name": pairs.start_name, "start": pairs.start}


def _check_stuck_preference_loss(run: RunHistory) -> Values:
    """Return the message values if the loss still has its initial value after many steps."""
    pairs, step = _get_preference_metrics(run), run.last["step"]
    if pairs is None or step < _UNMOVED_STEPS or abs(pairs.loss - pairs.start) >= _UNMOVED:
        return None
    return {"name": pairs.start_name, "steps": step}


def _check_preferred_probability(run: RunHistory) -> Values:
    """Return the message values if the preferred responses become less probable, otherwise None.

    DPO's loss can fall even if both responses become less probable.
    """
    pairs = _get_preference_metrics(run)
    gain = run.last.get(f"train_{pairs.preferred}", 0.0) if pairs else 0.0
    if pairs is None or gain >= -_FALLEN:
        return None
    return {"preferred": pairs.preferred, "gain": gain, "weight": pairs.weight}


def _get_first_and_last(run: RunHistory, name: str, default: float = 0.0) -> tuple[float, float]:
    """Return the value of a policy metric in the first and in the last log record.

    A missing value is replaced with `default`. Other objectives return the default twice.
    """
    if not isinstance(run.objective, PolicyGradient):
        return default, default
    return run.first.get(f"train_{name}", default), run.last.get(f"train_{name}", default)


def _check_equal_rewards(run: RunHistory) -> Values:
    """Return the message values if the responses in most groups have equal rewards, otherwise None.

    The model learns nothing from such groups.
    """
    _, fraction = _get_first_and_last(run, "frac_reward_zero_std")
    _, reward = _get_first_and_last(run, "reward")
    return {"share": fraction, "reward": reward} if fraction > _EQUAL else None


def _check_kl_divergence(run: RunHistory) -> Values:
    """Return the message values if the KL divergence from the reference model is large."""
    _, distance = _get_first_and_last(run, "kl")
    return {"distance": distance} if distance > _FAR else None


def _check_repetition(run: RunHistory) -> Values:
    """Return the message values if the fraction of distinct bigrams has halved, otherwise None."""
    first, last = _get_first_and_last(run, "distinct_2")
    return {"share": last} if last < first / 2 and not _check_kl_divergence(run) else None


def _check_growing_responses(run: RunHistory) -> Values:
    """Return the message values if responses approach the maximum length, otherwise None."""
    first, last = _get_first_and_last(run, "length")
    reward_before, reward = _get_first_and_last(run, "reward")
    longest = getattr(run.objective, "max_new_tokens", math.inf)
    grows = first < _SHORT * longest and last > _LONG * longest
    return {"first": first, "now": last} if grows and reward > reward_before else None


def _check_truncated_responses(run: RunHistory) -> Values:
    """Return the message values if most responses have the maximum length from the start."""
    first, last = _get_first_and_last(run, "terminated", 1.0)
    if first >= _TERMINATED or not isinstance(run.objective, PolicyGradient):
        return None
    return {"share": last, "size": run.objective.max_new_tokens}


def _check_falling_reward(run: RunHistory) -> Values:
    """Return the message values if the mean reward has fallen significantly, otherwise None."""
    before, after = run.rewards[:_REWARDS], run.rewards[_REWARDS:]
    if len(after) < _REWARDS:
        return None
    fall = statistics.fmean(before) - statistics.fmean(after)
    variance = statistics.variance(before) + statistics.variance(after)
    if fall <= _ERRORS * math.sqrt(variance / _REWARDS):
        return None
    return {"before": statistics.fmean(before), "after": statistics.fmean(after)}


WARNINGS: Mapping[str, Callable[[RunHistory], Values]] = {
    "diverges": _check_divergence,
    "stuck": _check_stuck_loss,
    "differs_from_reference": _check_reference_mismatch,
    "nothing_learned": _check_stuck_preference_loss,
    "preferred_become_rarer": _check_preferred_probability,
    "same_rewards": _check_equal_rewards,
    "far_from_reference": _check_kl_divergence,
    "responses_repeat": _check_repetition,
    "responses_grew": _check_growing_responses,
    "responses_cut": _check_truncated_responses,
    "reward_falls": _check_falling_reward,
}
"""The condition of every warning, by the name of the warning's message in `[warning]`."""


@dataclass
class RunWarnings(Callback):
    """A callback that adds an entry `warning` to log records. Later callbacks print the warning."""

    run: RunFolder
    history: RunHistory

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Read the earlier records of a resumed run, so that old warnings are not repeated."""
        for record in self.run.read_metrics():
            self.history.find_warning(record)

    def on_log(self, record: dict[str, Any]) -> None:
        """Add a `warning` to the log record, if a new warning is due."""
        if warning := self.history.find_warning(record):
            record["warning"] = warning
