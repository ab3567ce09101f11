"""Evaluates a run during training: computes losses and metrics, and saves the best weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trivium.errors import shorten
from trivium.messages import translated
from trivium.objectives import Metrics
from trivium.progress import ProgressLine, labelled
from trivium.train.kept_weights import KeptWeights
from trivium.train.loader import BatchStream
from trivium.train.loss_meter import merge_records
from trivium.train.trainer import Trainer, TrainState, compute_validation_losses
from trivium.workflows.finished_run import ValidationMetrics
from trivium.workflows.run_samples import generate_samples

# The number of examples with predictions (of a policy: prompts with responses) to log at every
# evaluation.
_SAMPLES = 3


@dataclass
class RunEvaluation:
    """Evaluates the model during training, and saves the best weights.

    Args:
        log: the progress line.
        validation: computes the metrics on labelled validation examples.
        streams: the batch streams of the data sources that have validation data.
        kept: the saved best weights of the run.
        callbacks_read: whether there are user callbacks. Callbacks may read the model, so sharded
            weights are gathered for them.
    """

    log: ProgressLine
    validation: ValidationMetrics
    streams: Sequence[BatchStream]
    kept: KeptWeights
    callbacks_read: bool

    def __call__(self, trainer: Trainer, state: TrainState) -> dict[str, Any]:
        """Evaluate the model, and save the weights if they are the best so far.

        All processes must call this method. Returns the log record: the validation losses, and on
        rank 0 also the metrics.
        """
        self.log.update(translated("progress.evaluating"))
        measured, kept = self.validation, self.kept
        record = compute_validation_losses(trainer, self.streams, measured.limit)
        # In a mix with labelled examples, their metric determines the best weights.
        by_loss = (
            "valid_loss" in record
            and not measured.sources
            and kept.keeps_lowest_loss(repeats_data=trainer.repeats_data(state.step - 1))
        )
        shows_samples = trainer.recipe.train.samples
        if by_loss:
            kept.save_if_best(-record["valid_loss"])
        if measured.sources:
            record = self._measure(record, state, shows_samples=shows_samples)
        elif shows_samples:
            excerpts = [*measured.corpus.iter_excerpts()]
            samples = kept.model.map(partial(generate_samples, kept.model.lm), excerpts)
            self._show_samples(state.step, samples)
        if self.callbacks_read:
            kept.model.gather(on_host=True)
        return record

    def _measure(
        self, record: dict[str, Any], state: TrainState, *, shows_samples: bool
    ) -> dict[str, Any]:
        """Compute the metrics on labelled examples, and save the weights if they are the best.

        Returns the log record, to which the metrics are added on rank 0.
        """
        measured, kept = self.validation, self.kept
        metrics = measured.evaluate(measured.limit)
        if not kept.model.parallel.is_main:
            kept.save_if_best(math.nan)  # rank 0 has the score
            return record
        for name, one in metrics.items():
            prefix = f"valid_{name}/" if name else "valid_"
            record = merge_records(record, {prefix + key: v for key, v in one.values.items()})
        name, first = next(iter(metrics.items()))
        if measured.sources[0].objective.rolls_out:
            record = {**record, "samples": first.predictions[:_SAMPLES]}
        if shows_samples:
            self._show_samples(state.step, first.predictions[:_SAMPLES])
        if kept.metric == "":
            self._set_metric(f"{name}/{first.main}" if name else first.main, first)
        loss_score = -record.get("valid_loss", math.nan)
        kept.save_if_best(first.score if kept.metric else loss_score)
        return record

    def _show_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Print outputs of the model at a step, and append them to `samples.jsonl`.

        `samples` are prompts with outputs, or validation examples with predictions. Only rank 0
        prints and writes.
        """
        if not self.kept.model.parallel.is_main:
            return
        self.kept.run.append_samples({"step": step, "samples": samples})
        for one in samples:
            shown = " | ".join(f"{name}: {shorten(str(value), 200)}" for name, value in one.items())
            self.log.print_line(labelled("sample", " ".join(shown.split())))

    def _set_metric(self, name: str, metrics: Metrics) -> None:
        """Choose what selects the best weights: the metric `name`, or else the validation loss.

        The metric is used if its value is finite in `metrics`, the results of the first evaluation.
        """
        if math.isfinite(metrics.score):
            self.kept.metric = name
            known = {"metric": name, "higher_is_better": metrics.higher_is_better}
            self.kept.run.write_metadata(self.kept.run.read_metadata() | known)
        else:
            self.kept.metric = None
            self.log.print_message("metrics", "run.metric_undefined", metric=name)
