"""What a task is: how its examples are read, learned from, and measured by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trivium.data import Examples
from trivium.data.labelled import Example
from trivium.evaluate.metrics import LOWER_IS_BETTER, Metrics
from trivium.evaluate.mistakes import Mistake
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives import Objective
from trivium.spec import AnySpec, Head
from trivium.train.finetune_recipe import ExamplesSection, TaskSection

AnyExample = TypeVar("AnyExample", bound=Example)


@dataclass(frozen=True)
class Measured:
    """What a model does with examples: figures, the worst mistakes, and all answers."""

    metrics: Metrics
    mistakes: tuple[Mistake, ...] = ()
    predictions: tuple[dict[str, Any], ...] = ()
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The main metric, turned so that more is better."""
        name, value = self.metrics.main
        return -value if name in LOWER_IS_BETTER else value


class Task(ABC, Generic[AnyExample]):
    """One kind of fine-tuning.

    Args:
        section: what the recipe says of it.
        data: how examples are cut.

    `writes`: examples are measured by texts that the model writes, which takes long.
    """

    writes = False

    def __init__(self, section: TaskSection, data: ExamplesSection) -> None:
        self.section, self.data = section, data

    @abstractmethod
    def read(self, paths: Sequence[str], like: Sequence[AnyExample] = ()) -> list[AnyExample]:
        """The examples of files; `like`: those of training, whose kind of label others have too.

        Raises DataError with file and line.
        """

    @abstractmethod
    def settings(self, settings: Settings, train: Sequence[AnyExample]) -> Settings:
        """The settings of a model with what it must know to do the task: names of labels, ..."""

    @abstractmethod
    def heads(self, spec: AnySpec, settings: Settings) -> tuple[Head, ...]:
        """The heads that the task needs on this model.

        Raises RecipeError where the model cannot do it.
        """

    @abstractmethod
    def objective(
        self, spec: AnySpec, settings: Settings, train: Sequence[AnyExample]
    ) -> Objective:
        """What is asked in training."""

    @abstractmethod
    def encode(self, model: LanguageModel, examples: Sequence[AnyExample]) -> Examples:
        """Examples as numbers, cut to `model.max_length` tokens."""

    @abstractmethod
    def measure(self, model: LanguageModel, examples: Sequence[AnyExample]) -> Measured:
        """What the model answers to examples, by the verbs that users have too."""

    @abstractmethod
    def texts(self, examples: Sequence[AnyExample]) -> Iterator[str]:
        """All text of examples, to train a tokenizer on."""

    @abstractmethod
    def try_metrics(self, examples: Sequence[AnyExample], settings: Settings) -> None:
        """Measure right answers: raises MissingExtraError before anything is trained."""

    def sources(self, examples: Sequence[AnyExample]) -> Iterator[str]:
        """Of that text, what is read; all of it unless targets are written."""
        return self.texts(examples)

    def targets(self, examples: Sequence[AnyExample]) -> Iterator[str]:
        """Of that text, what is written; all of it unless sources are read."""
        return self.texts(examples)

    def check(self, examples: Sequence[AnyExample], settings: Settings) -> None:
        """Raise DataError, with file and line, at an example that this model cannot be asked."""
