"""Runs ranked by their loss after the same time, beside the unigram baseline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trivium.messages import display_width, padded, translated, translated_whole
from trivium.progress import short_duration
from trivium.report.run_files import RunFiles, number

# Budgets in minutes end after a step: a run may take this much longer than the shortest.
_TOLERANCE = 1.05
# Unigram losses closer than this are those of the same text and tokenizer.
_SAME_TEXT = 1e-6


@dataclass(frozen=True)
class RankedRun:
    """A line of a ranking; a baseline has no place, parameters and time.

    `loss` is in nats per token, `bits` in bits per byte, `seconds` when the loss was measured.
    """

    place: int | None
    name: str
    model: str
    parameters: float | None
    loss: float
    bits: float | None
    seconds: float | None


@dataclass(frozen=True)
class Ranking:
    """Runs with the same objective, best first, by the best loss until the shortest had ended.

    `same_text` False: they have other texts or tokenizers, and are ranked by bits per byte.
    """

    objective: str
    seconds: float
    lines: tuple[RankedRun, ...]
    same_text: bool

    @property
    def title(self) -> str:
        """The objective and the time."""
        after = short_duration(self.seconds)
        return translated("{objective} after {time}", objective=self.objective, time=after)


def incomparable(runs: Sequence[RunFiles]) -> list[str]:
    """Sentences on what runs side by side do not have in common."""
    objectives = dict.fromkeys(_objective(run) for run in runs)
    each = (map(translated_whole, run.evaluation.get("notes") or ()) for run in runs)
    notes = dict.fromkeys(map(translated("; ").join, each))
    sentences = []
    if len(objectives) > 1:
        sentences.append(
            translated(
                "The runs have different objectives ({objectives}): their losses and metrics "
                "cannot be compared with each other.",
                objectives=", ".join(objectives),
            )
        )
    elif len(set(notes) - {""}) > 1:
        sentences.append(
            translated(
                "Metrics are computed in different ways: {notes}.",
                notes=" / ".join(filter(None, notes)),
            )
        )
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
    return translated("next token") if run.predicts_next_token else run.objective


def _rank(objective: str, group: Sequence[tuple[str, RunFiles]]) -> Ranking:
    seconds = min(_losses_by_time(run)[-1][0] for _, run in group)
    same_text = have_same_text([run for _, run in group])
    lines = [_line(name, run, seconds) for name, run in group]
    if same_text:
        _, run = group[0]
        for label, loss in run.baselines.items():
            lines.append(RankedRun(None, label, "", None, loss, run.bits_per_byte(loss), None))
    lines.sort(key=lambda line: line.loss if same_text or line.bits is None else line.bits)
    ranks = itertools.count(1)
    ranked = tuple(
        line if line.seconds is None else replace(line, place=next(ranks)) for line in lines
    )
    return Ranking(objective, seconds, ranked, same_text)


def _line(name: str, run: RunFiles, seconds: float) -> RankedRun:
    """The best loss up to a time, or the first one if that was measured later."""
    points = _losses_by_time(run)
    in_time = [(loss, at) for at, loss in points if at <= seconds * _TOLERANCE]
    loss, at = min(in_time or [(points[0][1], points[0][0])])
    parameters = run.fact("num_parameters")
    return RankedRun(None, name, run.model, parameters, loss, run.bits_per_byte(loss), at)


def _losses_by_time(run: RunFiles) -> list[tuple[float, float]]:
    """Validation losses over seconds of training, without the time of measuring them."""
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
    nats, per_byte = translated("nats per token"), translated("bits per byte")
    lines = [ranking.title, ""]
    for line in ranking.lines:
        place = "" if line.place is None else f"{line.place}."
        bits = "" if line.bits is None else f"{line.bits:9.4f} {per_byte}"
        size = (
            ""
            if line.parameters is None
            else translated("{count:>13,.0f} parameters", count=line.parameters)
        )
        name = padded(line.name, width)
        lines.append(f"{place:>3} {name} {line.loss:9.4f} {nats}{bits}{size}")
    return "\n".join(lines)
