"""Measures a run on this machine before it starts: the process behind the studio's forecast.

The run starts as it will start later, but in a folder that is deleted, and stops after its first
step. The forecast is therefore that of the run itself, for text and for labelled examples.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from trivium.data.python_data import PathList
from trivium.errors import TriviumError
from trivium.train.callback import Callback
from trivium.train.recipe_loading import build_recipe
from trivium.workflows.training import finetune, pretrain


class _FirstStepDone(Exception):
    """Ends a run after its first step."""


class _StopAfterFirstStep(Callback):
    """Ends a run after its first step. `loss` is the training loss of that step."""

    loss = 0.0

    def on_log(self, record: dict[str, Any]) -> None:
        """Keep the training loss and end the run."""
        self.loss = record["train_loss"]
        raise _FirstStepDone


def measure_run(
    task: str | None, model: str, data: Sequence[str], changes: Sequence[str], out: str
) -> dict[str, Any]:
    """Prepare a run, measure its speed and train its first step.

    Returns the metadata of the run (`forecast`, `train_tokens`, `unigram_loss`, `train_examples`
    and so on) with two more entries: `first_loss`, the training loss before any weight has
    changed, and `steps_to_beat_unigram` of its objective.

    Args:
        task: the task of `trivium finetune`; None for `trivium pretrain`.
        model: a preset, or the folder of a trained model.
        data: the files or folders to train on.
        changes: overrides for recipe keys, as KEY=VALUE.
        out: the run folder.

    Raises:
        TriviumError: the run cannot start.
    """
    stop = _StopAfterFirstStep()
    changes, callbacks = [*changes, "train.log_every=1"], [stop]
    with contextlib.suppress(_FirstStepDone):
        if task is None:
            pretrain(model, data=PathList(data), out=out, changes=changes, callbacks=callbacks)
        else:
            finetune(
                task, model=model, data=PathList(data), out=out, changes=changes,
                callbacks=callbacks,
            )  # fmt: skip
    with open(f"{out}/run.json", encoding="utf-8") as file:
        metadata = json.load(file)
    objectives = build_recipe(metadata["recipe"]).objectives
    steps = max(one.advice().steps_to_beat_unigram for one in objectives)
    return {**metadata, "first_loss": stop.loss, "steps_to_beat_unigram": steps}


if __name__ == "__main__":
    try:
        print(json.dumps(measure_run(**json.loads(sys.argv[1]))))
    except TriviumError as error:
        sys.exit(f"error: {error}")
