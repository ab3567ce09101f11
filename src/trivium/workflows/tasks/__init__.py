"""The tasks that a model can be taught, by name."""

from __future__ import annotations

from typing import Any

from trivium.train.finetune_recipe import ExamplesSection, TaskSection
from trivium.workflows.tasks.base import Measured, Task
from trivium.workflows.tasks.classification import ClassificationTask
from trivium.workflows.tasks.questions import QuestionTask
from trivium.workflows.tasks.responses import ResponseTask
from trivium.workflows.tasks.source_to_target import SourceToTarget
from trivium.workflows.tasks.tagging import TaggingTask

__all__ = ["TASKS", "Measured", "Task", "build_task"]

TASKS: dict[str, type[Task[Any]]] = {
    "classification": ClassificationTask,
    "tagging": TaggingTask,
    "qa": QuestionTask,
    "translation": SourceToTarget,
    "text-to-text": SourceToTarget,
    "summarization": SourceToTarget,
    "lm": ResponseTask,
}


def build_task(section: TaskSection, data: ExamplesSection) -> Task[Any]:
    """The task of a recipe."""
    return TASKS[section.kind](section, data)
