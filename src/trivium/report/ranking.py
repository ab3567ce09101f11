"""Rankings of runs by their loss after the same number of steps or tokens, or the same time.

A ranking includes the unigram baseline for comparison.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trivium.messages import display_width, padded, translate_english, translated
from trivium.progress import format_duration
from trivium.report.common_examples import compare_common_examples
from trivium.report.run_files import Points, RunFiles, to_float

# Budgets in minutes and tokens are checked only after a step. Therefore losses count up to this
# multiple of the shortest run's budget.
_TOLERANCE = 1.05
_BUDGETS = ("steps", "tokens", "epochs", "minutes")
# If unigram losses differ by less than this, runs have the same text and tokenizer.
_SAME_TEXT = 1e-6


@dataclass(frozen=True)
class RankedRun:
    """A run or a baseline in a ranking.

    Args:
        place: the position in the ranking, from 1; None for a baseline.
        name: the name of the run or of the baseline.
        model: the model of the run.
        parameters: the number of parameters; None for a baseline.
        loss: the loss in nats per token.
        bits: the loss in bits per byte; None if it is unknown.
        at: the step, number of tokens or time in seconds at which the loss was measured; None for a
            baseline.
    """

    place: int | None
    name: str
    model: str
    parameters: float | None
    loss: float
    bits: float | None
    at: float | None


@dataclass(frozen=True)
class Ranking:
    """A ranking of runs with the same objective, the best run first.

    Each run is ranked by its best loss before the point at which the shortest run ended.

    Args:
        objective: the objective of the runs.
        axis: the measure of training progress at which runs are compared: "step", "tokens" or
            "seconds".
        limit: the value of `axis` at the end of the shortest run.
        lines: the entries of the ranking: runs and baselines.
        same_text: whether all runs have the same text and tokenizer. If not, runs are ranked by
            bits per byte.
        budgets: the training budgets of the runs, such as "1000 steps"; empty if they are equal.
    """

    objective: str
    axis: str
    limit: float
    lines: tuple[RankedRun, ...]
    same_text: bool
    budgets: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The title: the objective, and the point in training at which the runs are compared."""
        after = self.format_axis_value(self.limit)
        return translated("comparison.after_time", objective=self.objective, time=after)

    @property
    def note(self) -> str:
        """A sentence about the different training budgets, or an empty string if they are equal."""
        if not self.budgets:
            return ""
        budgets = translated("join.comma").join(self.budgets)
        return translated(
            "comparison.different_budgets", budgets=budgets, time=self.format_axis_value(self.limit)
        )

    def format_axis_value(self, value: float) -> str:
        """Format a value of `axis` as text: a step, a number of tokens or a time."""
        if self.axis == "seconds":
            return format_duration(value)
        return translated(
            "comparison.at_one_step" if self.axis == "step" else "comparison.after_tokens",
            step=value,
        )


def describe_differences(runs: Sequence[RunFiles]) -> list[str]:
    """Return warnings about differences that make runs hard to compare.

    Runs may differ in the objective, in the metrics or in the validation examples.
    """
    objectives = dict.fromkeys(_format_objective(run) for run in runs)
    translated_notes = (map(translate_english, run.evaluation.get("notes") or ()) for run in runs)
    notes = dict.fromkeys(map(translated("join.semicolon").join, translated_notes))
    sentences = []
    if len(objectives) > 1:
        sentences.append(
            translated("comparison.different_objectives", objectives=", ".join(objectives))
        )
    elif len(set(notes) - {""}) > 1:
        sentences.append(
            translated("comparison.different_metrics", notes=" / ".join(filter(None, notes)))
        )
    if len(runs) > 1 and len(objectives) == 1 and all(run.evaluation for run in runs):
        sentences += compare_common_examples(runs)
    return sentences


def have_same_text(runs: Sequence[RunFiles]) -> bool:
    """Return whether all runs have the same text and tokenizer.

    This is assumed if their unigram losses are equal.
    """
    unigram = [run.get_metadata("unigram_loss") or math.nan for run in runs]
    return all(abs(loss - unigram[0]) < _SAME_TEXT for loss in unigram)


def rank_runs(runs: Sequence[RunFiles], names: Sequence[str]) -> list[Ranking]:
    """Rank pretraining runs. Returns one ranking per objective that has at least two runs.

    `names` are the display names of the runs.
    """
    groups: dict[str, list[tuple[str, RunFiles]]] = {}
    for name, run in zip(names, runs, strict=True):
        if run.get_curve("valid_loss") and run.metric is None:
            groups.setdefault(_format_objective(run), []).append((name, run))
    return [_rank_group(objective, group) for objective, group in groups.items() if len(group) > 1]


def _format_objective(run: RunFiles) -> str:
    """Return the display name of a run's objective.

    All objectives that predict the next token share one name.
    """
    return translated("comparison.next_token") if run.predicts_next_token else run.objective


def _rank_group(objective: str, named_runs: Sequence[tuple[str, RunFiles]]) -> Ranking:
    """Rank runs with the same objective, given as (name, run) pairs."""
    budgets = [_find_budget(run) for _, run in named_runs]
    kinds = {kind for kind, _ in budgets}
    axis = {"steps": "step", "minutes": "seconds"}.get(*kinds) if len(kinds) == 1 else None
    axis = axis or "tokens"
    limit = min(_list_validation_losses(run, axis)[-1][0] for _, run in named_runs)
    same_text = have_same_text([run for _, run in named_runs])
    lines = [_make_ranked_run(name, run, axis, limit) for name, run in named_runs]
    if same_text:
        _, run = named_runs[0]
        for label, loss in run.baselines.items():
            lines.append(RankedRun(None, label, "", None, loss, run.bits_per_byte(loss), None))
    lines.sort(key=lambda line: line.loss if same_text or line.bits is None else line.bits)
    ranks = itertools.count(1)
    ranked = tuple(line if line.at is None else replace(line, place=next(ranks)) for line in lines)
    named = tuple(
        f"{size:g} {translated(f'unit.{kind}')}" for kind, size in dict.fromkeys(budgets) if kind
    )
    differ = named if len({*budgets}) > 1 else ()
    return Ranking(objective, axis, limit, ranked, same_text, differ)


def _find_budget(run: RunFiles) -> tuple[str, float]:
    """Return the training budget of a run as a pair of its key in `[train]` and its value.

    An example is ("steps", 1000.0). Returns ("", 0.0) if the recipe sets no budget.
    """
    sizes = {name: to_float(run.get_setting("train", name)) for name in _BUDGETS}
    return next(((name, size) for name, size in sizes.items() if size is not None), ("", 0.0))


def _make_ranked_run(name: str, run: RunFiles, axis: str, limit: float) -> RankedRun:
    """Make the ranking entry of a run, with its best validation loss up to a point in training.

    The point is the value `limit` of the measure `axis` ("step", "tokens" or "seconds"). If the run
    was first evaluated after this point, the loss of this evaluation is used. The place in the
    ranking is not set yet.
    """
    points = _list_validation_losses(run, axis)
    most = limit if axis == "step" else limit * _TOLERANCE
    in_time = [(loss, at) for at, loss in points if at <= most]
    loss, at = min(in_time or [(points[0][1], points[0][0])])
    parameters = run.get_metadata("num_parameters")
    return RankedRun(None, name, run.model, parameters, loss, run.bits_per_byte(loss), at)


def _list_validation_losses(run: RunFiles, axis: str) -> Points:
    """Return the validation losses of a run as (x, loss) points.

    `axis` is the quantity x: "step", "tokens" or "seconds". Seconds are measured at the start of an
    evaluation, so they do not include its duration.
    """
    if axis != "seconds":
        return run.get_curve("valid_loss", over=axis)
    seconds: dict[float, float] = {}
    for key in ("valid_loss", "train_loss"):  # training records are written before evaluations
        for record in run.metrics:
            step, time = to_float(record.get("step")), to_float(record.get("seconds"))
            if key in record and step is not None and time is not None:
                seconds[step] = time
    return [(seconds.get(step, step), loss) for step, loss in run.get_curve("valid_loss")]


def format_ranking(ranking: Ranking) -> str:
    """Format a ranking as plain text, one line per run."""
    width = max(display_width(line.name) for line in ranking.lines)
    nats, per_byte = translated("unit.nats_per_token"), translated("unit.bits_per_byte")
    lines = [ranking.title, *filter(None, [ranking.note]), ""]
    for line in ranking.lines:
        place = "" if line.place is None else f"{line.place}."
        bits = "" if line.bits is None else f"{line.bits:9.4f} {per_byte}"
        name = padded(line.name, width)
        lines.append(f"{place:>3} {name} {line.loss:9.4f} {nats}{bits}")
    return "\n".join(lines)
