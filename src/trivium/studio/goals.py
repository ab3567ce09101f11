"""What the studio can make, and the command line that makes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from trivium.data.documents import ReadOptions
from trivium.errors import TriviumError
from trivium.files import is_file_name
from trivium.messages import english

MAX_MINUTES = 7 * 24 * 60

# The keys that change how files are read; `trivium check` refuses other keys of [data].
_READ_KEYS = {f"data.{field.name}" for field in fields(ReadOptions)}
# Text has no epochs in a budget of minutes, so that the default of 200 steps is many minutes of a
# large model. Labelled examples are evaluated once per epoch by default.
_TEXT_CHANGES = ("train.eval_every=100", "train.save_every=100")


@dataclass(frozen=True)
class Goal:
    """Something that the studio can make.

    Args:
        name: the identifier, also the first part of the names of runs.
        presets: the preset of each size; the first is the default.
        task: the task of `trivium finetune`; None for `trivium pretrain`.
        samples: the bundled files to train on, in the folder of `trivium samples`.
        family: the architecture of trained models that the run may start from: "encoder-only" or
            "decoder-only". None if it always starts from new weights.
    """

    name: str
    presets: Mapping[str, str]
    task: str | None = None
    samples: tuple[str, ...] = ()
    family: str | None = None

    def get_preset(self, size: str) -> str:
        """Return the preset of a size. Raises TriviumError for an unknown size."""
        if size not in self.presets:
            raise TriviumError(
                f"there is no size {size!r} for {self.name}: choose {', '.join(self.presets)}."
            )
        return self.presets[size]


_DECODERS = {"small": "llama-tiny", "medium": "llama-mini", "large": "llama-midi"}
_ENCODERS = {"small": "modernbert-tiny", "medium": "modernbert-mini", "large": "modernbert-midi"}

GOALS = {
    goal.name: goal
    for goal in (
        Goal(
            "continue",
            {"auto": "llama-auto", **_DECODERS},
            samples=("stories.txt", "poems.txt", "english.txt", "chinese.txt"),
        ),
        Goal(
            "fill",
            {"auto": "modernbert-auto", **_ENCODERS},
            samples=("english.txt", "chinese.txt", "stories.txt"),
        ),
        Goal(
            "translate",
            {"small": "transformer-tiny", "medium": "transformer-mini"},
            task="translation",
            samples=("english-french.tsv",),
        ),
        Goal("classify", _ENCODERS, "classification", ("movies.jsonl",), "encoder-only"),
        Goal("tag", _ENCODERS, "tagging", ("names.conll",), "encoder-only"),
        Goal("answer", _ENCODERS, "qa", family="encoder-only"),
        Goal("embed", _ENCODERS, "tsdae", ("english.txt", "chinese.txt"), "encoder-only"),
        Goal("search", _ENCODERS, "contrastive", family="encoder-only"),
        Goal("chat", _DECODERS, "chat", family="decoder-only"),
    )
}
"""All goals by name, in the order of the page."""


@dataclass(frozen=True)
class Choices:
    """The choices on the page from which the command lines are built.

    Args:
        goal: what to make.
        data: the files or folders to train on, relative to the studio's folder or absolute.
        size: the size of a new model; ignored if `base` is given.
        minutes: the training time.
        base: the folder of a trained model to start from; None for new weights.
        changes: further recipe keys as KEY=VALUE.

    Raises:
        TriviumError: a choice is missing or not allowed.
    """

    goal: Goal
    data: tuple[str, ...]
    size: str
    minutes: float
    base: str | None = None
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.data:
            raise TriviumError(english("reason.studio_no_data"))
        if not (math.isfinite(self.minutes) and 0 < self.minutes <= MAX_MINUTES):
            values = {"minutes": self.minutes, "most": MAX_MINUTES}
            raise TriviumError(english("reason.studio_minutes", **values))
        for change in self.changes:
            if "=" not in change or change.startswith("-"):
                raise TriviumError(english("reason.studio_setting", change=change))

    @property
    def model(self) -> str:
        """The preset, or the folder of the model to start from."""
        return self.base or self.goal.get_preset(self.size)

    @property
    def all_changes(self) -> list[str]:
        """The recipe keys that the command sets, as KEY=VALUE; those of the user come last."""
        text = _TEXT_CHANGES if self.goal.task is None else ()
        return [f"train.minutes={self.minutes:g}", "train.samples=true", *text, *self.changes]

    def build_command(self, out: str) -> list[str]:
        """Return the arguments of `trivium` that train the model. `out` is the run folder."""
        changes = _repeat_option("--set", self.all_changes)
        data = _repeat_option("--data", self.data)
        if self.goal.task is None:
            return ["pretrain", self.model, *data, "--out", out, *changes]
        return ["finetune", self.goal.task, "--model", self.model, *data, "--out", out, *changes]

    def build_check(self) -> list[str]:
        """Return the arguments of `trivium check` for the data."""
        kept = [one for one in self.changes if one.partition("=")[0] in _READ_KEYS]
        task: list[str] = []
        if self.goal.task is not None:
            kept += [one for one in self.changes if one.startswith("objective.")]
            task = ["--task", self.goal.task]
        return ["check", *self.data, *task, *_repeat_option("--set", kept), "--json"]

    def build_measurement(self, out: str) -> dict[str, Any]:
        """Return the arguments of `measure_run` for the run. `out` is a folder for its files."""
        return {
            "task": self.goal.task,
            "model": self.model,
            "data": self.data,
            "changes": self.all_changes,
            "out": out,
        }


def split_lines(text: str | None) -> tuple[str, ...]:
    """Return the lines of a text that are not blank. None is an empty text."""
    return tuple(line.strip() for line in (text or "").splitlines() if line.strip())


def check_run_name(name: str | None) -> str:
    """Return the name of a run without surrounding space.

    Raises TriviumError if the name is not the name of a visible folder.
    """
    name = (name or "").strip()
    if not name or not is_file_name(name) or name.startswith((".", "-")) or not name.isprintable():
        raise TriviumError(english("reason.studio_name", name=name))
    return name


def choose_run_name(goal: str, taken: Sequence[str]) -> str:
    """Return a name for a new run that is not taken: "continue-1", "continue-2", ...

    >>> choose_run_name("tag", ["tag-1", "other"])
    'tag-2'
    """
    number = 1
    while f"{goal}-{number}" in taken:
        number += 1
    return f"{goal}-{number}"


def _repeat_option(option: str, values: Sequence[str]) -> list[str]:
    """Return the option before each of its values."""
    return [part for value in values for part in (option, value)]
