"""Runs ranked by their loss after equal steps, tokens or time, beside the unigram baseline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trivium.messages import display_width, padded, translated, translated_english
from trivium.progress import format_duration
from trivium.report.common_examples import common_examples
from trivium.report.run_files import Points, RunFiles, number

# Budgets in minutes and tokens end after a step: a run may take this much more than the shortest.
_TOLERANCE = 1.05
_BUDGETS = ("steps", "tokens", "epochs", "minutes")
# Unigram losses closer than this are those of the same text and tokenizer.
_SAME_TEXT = 1e-6


@dataclass(frozen=True)
class RankedRun:
    """A line of a ranking; a baseline has no place and no parameters, and was never measured.

    `loss` is in nats per token, `bits` in bits per byte; `at` is the step, the number of tokens or
    the second at which the loss was measured.
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
    """Runs with the same objective, best first, by the best loss until the shortest had ended.

    `axis` is what they have had equally much of, up to `limit`: "step", "tokens" or "seconds".
    `budgets` are their budgets where they differ. `same_text` False: they have other texts or
    tokenizers, and are ranked by bits per byte.
    """

    objective: str
    axis: str
    limit: float
    lines: tuple[RankedRun, ...]
    same_text: bool
    budgets: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The objective, and when the runs are compared."""
        after = self.shown(self.limit)
        return translated("comparison.after_time", objective=self.objective, time=after)

    @property
    def note(self) -> str:
        """A sentence where the runs were not given the same budget."""
        if not self.budgets:
            return ""
        budgets = translated("join.comma").join(self.budgets)
        return translated(
            "comparison.different_budgets", budgets=budgets, time=self.shown(self.limit)
        )

    def shown(self, at: float) -> str:
        """A step, a number of tokens or a time in words."""
        if self.axis == "seconds":
            return format_duration(at)
        return translated(
            "comparison.at_one_step" if self.axis == "step" else "comparison.after_tokens", step=at
        )


def incomparable(runs: Sequence[RunFiles]) -> list[str]:
    """Sentences on what runs side by side do not have in common."""
    objectives = dict.fromkeys(_objective(run) for run in runs)
    each = (map(translated_english, run.evaluation.get("notes") or ()) for run in runs)
    notes = dict.fromkeys(map(translated("join.semicolon").join, each))
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
        sentences += common_examples(runs)
    return sentences


def have_same_text(runs: Sequence[RunFiles]) -> bool:
    """Whether runs are known to have the same text and tokenizer: one unigram baseline."""
    unigram = [run.fact("unigram_loss") or math.nan for run in runs]
    return all(abs(loss - unigram[0]) < _SAME_TEXT for loss in unigram)


def rank_runs(runs: Sequence[RunFiles], names: Sequence[str]) -> list[Ranking]:
    """A ranking for every objective that two or more pretraining runs share."""
    groups: dict[str, list[tuple[str, RunFiles]]] = {}
    for name, run in zip(names, runs, strict=True):
        if run.series("valid_loss") and run.metric is None:
            groups.setdefault(_objective(run), []).append((name, run))
    return [_rank(objective, group) for objective, group in groups.items() if len(group) > 1]


def _objective(run: RunFiles) -> str:
    return translated("comparison.next_token") if run.predicts_next_token else run.objective


def _rank(objective: str, group: Sequence[tuple[str, RunFiles]]) -> Ranking:
    budgets = [_budget(run) for _, run in group]
    kinds = {kind for kind, _ in budgets}
    axis = {"steps": "step", "minutes": "seconds"}.get(*kinds) if len(kinds) == 1 else None
    axis = axis or "tokens"
    limit = min(_losses(run, axis)[-1][0] for _, run in group)
    same_text = have_same_text([run for _, run in group])
    lines = [_line(name, run, axis, limit) for name, run in group]
    if same_text:
        _, run = group[0]
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


def _budget(run: RunFiles) -> tuple[str, float]:
    """The key of `[train]` that says how long a run is, and its value."""
    sizes = {name: number(run.setting("train", name)) for name in _BUDGETS}
    return next(((name, size) for name, size in sizes.items() if size is not None), ("", 0.0))


def _line(name: str, run: RunFiles, axis: str, limit: float) -> RankedRun:
    """The best loss up to a limit, or the first one if that was measured later."""
    points = _losses(run, axis)
    most = limit if axis == "step" else limit * _TOLERANCE
    in_time = [(loss, at) for at, loss in points if at <= most]
    loss, at = min(in_time or [(points[0][1], points[0][0])])
    parameters = run.fact("num_parameters")
    return RankedRun(None, name, run.model, parameters, loss, run.bits_per_byte(loss), at)


def _losses(run: RunFiles, axis: str) -> Points:
    """Validation losses over steps, tokens, or seconds without the time of measuring them."""
    if axis != "seconds":
        return run.series("valid_loss", over=axis)
    seconds: dict[float, float] = {}
    for key in ("valid_loss", "train_loss"):  # a record of training is written before measuring
        for record in run.metrics:
            step, time = number(record.get("step")), number(record.get("seconds"))
            if key in record and step is not None and time is not None:
                seconds[step] = time
    return [(seconds.get(step, step), loss) for step, loss in run.series("valid_loss")]


def text_ranking(ranking: Ranking) -> str:
    """A ranking as plain text."""
    width = max(display_width(line.name) for line in ranking.lines)
    nats, per_byte = translated("unit.nats_per_token"), translated("unit.bits_per_byte")
    lines = [ranking.title, *filter(None, [ranking.note]), ""]
    for line in ranking.lines:
        place = "" if line.place is None else f"{line.place}."
        bits = "" if line.bits is None else f"{line.bits:9.4f} {per_byte}"
        name = padded(line.name, width)
        lines.append(f"{place:>3} {name} {line.loss:9.4f} {nats}{bits}")
    return "\n".join(lines)
