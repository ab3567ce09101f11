"""Callbacks: code of the user that a run calls at some moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.language_model import LanguageModel
from trivium.train.loader import GlobalBatch


class Callback:
    """Code that a run calls from its start to its end; override the methods that you need.

    They are called in the first process of a run. An exception ends the run, which `--resume`
    continues from its last checkpoint.

        class Show(trivium.Callback):
            def on_evaluate(self, record, lm):
                print(record["step"], record["valid_loss"], lm.generate("Once upon a time"))

        trivium.pretrain("gpt2-mini", data="my_texts/", out="runs/mine", callbacks=[Show()])
    """

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Called before the first step of this start, with this process's part of the step."""

    def on_step(self, step: int) -> None:
        """Called after every step; `step` is the number of steps so far.

        On a GPU, the step may still be computed.
        """

    def on_log(self, record: dict[str, Any]) -> None:
        """Called after a log line: `step`, `tokens`, `train_loss`, ... as in `metrics.jsonl`."""

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Called after an evaluation: `step`, `valid_loss`, metrics, ...; and the current model."""

    def on_save(self, folder: Path) -> None:
        """Called after a checkpoint was written, which `trivium.load(folder)` reads."""

    def on_end(self, folder: Path) -> None:
        """Called after the run has written its model and its report to its folder.

        A run that is interrupted, or that an error ends, does not call this method.
        """
