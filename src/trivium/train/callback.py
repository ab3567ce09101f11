"""The callback interface: code that runs at fixed points of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.language_model import LanguageModel
from trivium.train.loader import GlobalBatch


class Callback:
    """Code that a training run calls from its start to its end. Override the methods you need.

    The run's own log, files and checkpoints are callbacks, too. Each method is called on all
    callbacks of a run in the order of their list. The user's callbacks are called only in the first
    process. If a callback raises an exception, the run ends, and `--resume` continues from the last
    checkpoint.

        class Show(trivium.Callback):
            def on_evaluate(self, record, lm):
                print(record["step"], record["valid_loss"], lm.generate("Once upon a time"))

        trivium.pretrain("gpt2-mini", data="my_texts/", out="runs/mine", callbacks=[Show()])
    """

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Called before the first step after a start or a resume.

        Args:
            batch: this process's part of the first batch.
            lm: the model.
        """

    def on_step(self, step: int, progress: float) -> None:
        """Called after a step. A GPU may still compute the step, which is queued there.

        Args:
            step: the number of steps so far.
            progress: the fraction of the budget that is used, 0 to 1.
        """

    def on_log(self, record: dict[str, Any]) -> None:
        """Called with a log line: `step`, `tokens`, `train_loss` and so on, as in `metrics.jsonl`.

        On a GPU, losses are read one step late, after `on_step` of the next step. A callback may
        add entries to the record; later callbacks receive these entries. `warning` is such an
        entry.
        """

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Called after an evaluation.

        Args:
            record: `step`, `valid_loss`, metrics and so on, as in `metrics.jsonl`.
            lm: the current model.
        """

    def on_save(self, folder: Path) -> None:
        """Called when a checkpoint is saved.

        Args:
            folder: the folder of the checkpoint, which `trivium.load(folder)` reads.
        """

    def on_end(self, error: BaseException | None) -> None:
        """Called when training ends, before the final evaluation of the run.

        The method is called on all callbacks, even if another callback raises an error.

        Args:
            error: the exception that ended training; None at the end of the budget.
        """
