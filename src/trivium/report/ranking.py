"""Runs in the order of how good they got in the same time, beside what counting reaches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trivium.report.run_files import RunFiles, number
from trivium.report.summary import duration

# A run may take this much longer than the shortest: budgets in minutes end at the end of a step.
_TOLERANCE = 1.05
# Losses of word frequencies nearer than this are those of the same text and tokenizer.
_SAME = 1e-6

_QUESTIONS = {"span-corruption": "Hidden spans", "denoising": "Damaged text"}


@dataclass(frozen=True)
class Ranked:
    """A line of a ranking; what counts only has no place, no size and no time.

    `loss` is in nats a token, `bits` in bits a byte of text, `seconds` when the loss was measured.
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
    """Runs that answer the same question, best first, judged when the shortest had ended.

    `same_text` False: they have other texts or tokenizers, and are in the order of bits a byte.
    """

    title: str
    seconds: float
    lines: tuple[Ranked, ...]
    same_text: bool

    @property
    def heading(self) -> str:
        """What is ranked, and after what time."""
        return f"{self.title}, after {duration(self.seconds)}"


def rankings(runs: Sequence[RunFiles], names: Sequence[str]) -> list[Ranking]:
    """A ranking for every question that two or more runs answer: next tokens, or masked ones."""
    groups: dict[str, list[tuple[str, RunFiles]]] = {}
    for name, run in zip(names, runs, strict=True):
        question = (
            "Next token"
            if run.tells_next
            else _QUESTIONS.get(str(run.setting("objective", "kind")), "Masked token")
        )
        if run.series("valid_loss") and run.task is None:
            groups.setdefault(question, []).append((name, run))
    return [_ranking(title, group) for title, group in groups.items() if len(group) > 1]


def text_ranking(ranking: Ranking) -> str:
    """A ranking as plain text."""
    width = max(len(line.name) for line in ranking.lines)
    lines = [ranking.heading, ""]
    for line in ranking.lines:
        place = "" if line.place is None else f"{line.place}."
        bits = "" if line.bits is None else f"{line.bits:7.3f} bits a byte"
        size = "" if line.parameters is None else f"{line.parameters:>13,.0f} parameters"
        lines.append(
            f"{place:>3} {line.name:<{width}}  {line.loss:7.4f} nats a token{bits}{size}".rstrip()
        )
    return "\n".join(lines)


def _ranking(title: str, group: Sequence[tuple[str, RunFiles]]) -> Ranking:
    seconds = min(_losses_by_time(run)[-1][0] for _, run in group)
    frequencies = [run.fact("unigram_loss") for _, run in group]
    first = frequencies[0]
    same = first is not None and all(
        loss is not None and abs(loss - first) < _SAME for loss in frequencies
    )
    lines = [_line(name, run, seconds) for name, run in group]
    # Counts speak of one text: of several, each run's own report has them.
    counts = next((run for _, run in group if run.count_losses), None) if same else None
    if counts is not None:
        for label, loss in counts.count_losses.items():
            lines.append(Ranked(None, label, "", None, loss, _bits(counts, loss), None))
    lines.sort(key=lambda line: line.loss if same or line.bits is None else line.bits)
    return Ranking(title, seconds, tuple(_numbered(lines)), same)


def _line(name: str, run: RunFiles, seconds: float) -> Ranked:
    """A run as it stood at a time, or where it was first measured if that was later."""
    points = _losses_by_time(run)
    by_then = [(loss, at) for at, loss in points if at <= seconds * _TOLERANCE]
    loss, at = min(by_then or [(points[0][1], points[0][0])])
    model = str(run.setting("model", "preset") or "")
    return Ranked(0, name, model, run.fact("num_parameters"), loss, _bits(run, loss), at)


def _losses_by_time(run: RunFiles) -> list[tuple[float, float]]:
    """Validation losses over the seconds after which training paused to measure them."""
    paused, measured = _seconds_of(run, "train_loss"), _seconds_of(run, "valid_loss")
    return [
        (paused.get(step, measured.get(step, step)), loss)
        for step, loss in run.series("valid_loss")
    ]


def _seconds_of(run: RunFiles, key: str) -> dict[float, float]:
    """Step -> seconds of the records that have a number of this name."""
    found = (
        (number(one.get("step")), number(one.get("seconds"))) for one in run.metrics if key in one
    )
    return {step: at for step, at in found if step is not None and at is not None}


def _bits(run: RunFiles, loss: float) -> float | None:
    """Bits a byte of text; of masked tokens they say nothing."""
    per_token = run.fact("bytes_per_token")
    return loss / math.log(2) / per_token if per_token and run.tells_next else None


def _numbered(lines: Sequence[Ranked]) -> list[Ranked]:
    places = itertools.count(1)
    return [line if line.place is None else replace(line, place=next(places)) for line in lines]
