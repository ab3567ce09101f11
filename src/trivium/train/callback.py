"""The callback interface: code that runs at fixed points of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.language_model import LanguageModel
from trivium.train.loader import GlobalBatch


class Callback:
    """Code that runs at fixed points of a training run. Override the methods that you need.

    The run's own log, files and checkpoints are callbacks, too. Each method is called on all
    callbacks of a run, in list order. The user's callbacks run only on rank 0. If a callback raises
    an exception, the run ends, and `--resume` continues from the last checkpoint.

        class Show(trivium.Callback):
            def on_evaluate(self, record, lm):
                print(record["step"], record["valid_loss"], lm.generate("Once upon a time"))

        trivium.pretrain("gpt2-mini", data="my_texts/", out="runs/mine", callbacks=[Show()])
    """

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Called before the first step after a start or a resume.

        Args:
            batch: the batch of the first step, with only the micro-batches of this process.
            lm: the model.
        """

    def on_step(self, step: int, progress: float) -> None:
        """Called after every step. On a GPU, the step may still be running at that time.

        Args:
            step: the number of steps completed so far.
            progress: the fraction of the training budget that has been used, 0 to 1.
        """

    def on_log(self, record: dict[str, Any]) -> None:
        """Called every `train.log_every` steps, with a log record.

        The record contains `step`, `tokens`, `train_loss` and so on, as in `metrics.jsonl`. On a
        GPU, losses are read one step late, after `on_step` of the next step. A callback may add
        entries to the record, such as `warning`; later callbacks receive these entries.
        """

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Called after every evaluation.

        Args:
            record: the step, the validation loss, the validation metrics and so on, as in
                `metrics.jsonl`.
            lm: the current model.
        """

    def on_save(self, folder: Path) -> None:
        """Called when a checkpoint is saved.

        Args:
            folder: the folder of the checkpoint, which `trivium.load(folder)` can load.
        """

    def on_end(self, error: BaseException | None) -> None:
        """Called when training ends, before the final evaluation of the run.

        This method is called on all callbacks, even if another callback raises an error.

        Args:
            error: the exception that ended training, or None if training reached the end of its
                budget.
        """
