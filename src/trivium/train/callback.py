"""Callbacks: everything around the loop of a run, in one list; the user's own are among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.language_model import LanguageModel
from trivium.train.loader import GlobalBatch


class Callback:
    """Code that a run calls from its start to its end; override the methods that you need.

    The run's own log, files and checkpoints are callbacks, too. Each method is called on all
    callbacks of a run, one after another in the order of their list. Callbacks of the user are
    called in the first process. An exception ends the run, which `--resume` continues from its last
    checkpoint.

        class Show(trivium.Callback):
            def on_evaluate(self, record, lm):
                print(record["step"], record["valid_loss"], lm.generate("Once upon a time"))

        trivium.pretrain("gpt2-mini", data="my_texts/", out="runs/mine", callbacks=[Show()])
    """

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Called before the first step of this start, with this process's part of the step."""

    def on_step(self, step: int, progress: float) -> None:
        """Called after a step is taken, or queued on a GPU, which may still compute the step.

        Args:
            step: the number of steps so far.
            progress: the share of the budget that is used, 0 to 1.
        """

    def on_log(self, record: dict[str, Any]) -> None:
        """Called with a log line: `step`, `tokens`, `train_loss`, ... as in `metrics.jsonl`.

        On a GPU numbers are read one step late, after `on_step` of the next step. Entries that a
        callback adds to a record are seen by the callbacks after it; `warning` is such an entry.
        """

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Called after an evaluation: `step`, `valid_loss`, metrics, ...; and the current model."""

    def on_save(self, folder: Path) -> None:
        """Called when the run is saved; `trivium.load(folder)` reads the checkpoint."""

    def on_end(self, error: BaseException | None) -> None:
        """Called when training ends; `error` is what ended it, None at the end of its budget.

        It is called on all callbacks, also if another callback fails. The final evaluation of the
        run follows.
        """
