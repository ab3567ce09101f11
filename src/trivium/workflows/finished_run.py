"""The end of a run: selects the best weights, evaluates them, and writes the model and report."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass
from functools import partial

import torch

from trivium.adapt import merged_state
from trivium.interop.peft_format import save_adapter, write_adapter_settings
from trivium.messages import translate_english, translated
from trivium.model_folder import new_model_folder, write_model
from trivium.model_loading import load
from trivium.models import build
from trivium.objectives import Metrics
from trivium.objectives.task_metrics import EVALUATION, PREDICTIONS, merge_metrics, write_evaluation
from trivium.progress import ProgressLine, format_count, format_duration, handle_signals, labelled
from trivium.report import read_run, summarize, write_report
from trivium.train import defaults
from trivium.train.kept_weights import KeptWeights
from trivium.train.recipe import Recipe
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import TrainState
from trivium.train.whole_model import WholeModel
from trivium.workflows.corpus import Corpus
from trivium.workflows.run_samples import generate_samples

# The maximum fractions of a time budget for one evaluation during training and for the final
# evaluations, and the minimum number of examples in an evaluation.
_EVAL_FRACTION, _END_FRACTION, _MIN_EXAMPLES = 0.1, 0.25, 16


@dataclass
class ValidationMetrics:
    """Computes the task metrics on the validation examples of every labelled data source.

    The processes share this work: each one predicts a part of the examples.

    Args:
        corpus: the data of the run.
        recipe: the complete recipe of the run.
        precision: the dtype of activations.
        model: the trained model.
    """

    corpus: Corpus
    recipe: Recipe
    precision: torch.dtype
    model: WholeModel

    def __post_init__(self) -> None:
        self.sources = [source for source in self.corpus.example_sources if source.valid]
        self.train = self.recipe.train
        self.minutes = None if self.train.eval_examples else self.train.minutes
        """The time budget in minutes, if it limits the evaluations; otherwise None."""
        self.limit = defaults.max_eval_examples(self.recipe)
        """The number of examples per source in an evaluation during training; None for all."""
        self.seconds_per_example = 0.0  # in the last evaluation

    def set_eval_limit(self, resumed_limit: int | None) -> None:
        """Check `train.metric`, and limit the number of examples in evaluations during training.

        The number is limited only if the budget is in minutes and there is one process. The limit
        is chosen by timing a few examples, so that an evaluation takes a small fraction of the
        budget.

        Args:
            resumed_limit: the limit that a resumed run used before; None for a new run.

        Raises:
            RecipeError: the task has no metric named `train.metric`.
        """
        is_single = self.model.parallel.size == 1
        is_limited = self.minutes is not None and bool(self.sources) and is_single
        if self.train.metric or (is_limited and resumed_limit is None):
            self.evaluate(1)
            self.seconds_per_example = 0.0  # included loading the metric libraries
        if is_limited and resumed_limit is None:
            self.evaluate(_MIN_EXAMPLES)
        if is_limited:
            self.limit = resumed_limit or self.count_affordable_examples(self.limit, _EVAL_FRACTION)

    def count_affordable_examples(self, limit: int | None, budget_fraction: float) -> int | None:
        """Return how many examples per data source an evaluation can afford.

        The evaluation may take the fraction `budget_fraction` of the time budget. The result is at
        most `limit`. If the budget is not in minutes, `limit` itself is returned.
        """
        seconds = self.seconds_per_example * len(self.sources)
        if self.minutes is None or not seconds:
            return limit
        fitting = max(_MIN_EXAMPLES, int(60.0 * self.minutes * budget_fraction / seconds))
        return fitting if limit is None else min(limit, fitting)

    def evaluate(self, limit: int | None) -> dict[str, Metrics]:
        """Evaluate the model on the validation examples of every data source.

        At most `limit` examples per data source are used, or all of them if `limit` is None. All
        processes must call this method. Returns the metrics by source name on rank 0, and an empty
        dict on other ranks.

        Raises:
            RecipeError: the first data source has no metric named `train.metric`.
        """
        lm, parallel = self.model.lm, self.model.parallel
        lm.module.eval()
        metrics: dict[str, Metrics] = {}
        count, begin = 0, time.monotonic()
        enabled = self.precision is not torch.float32
        with torch.autocast(self.model.device.type, self.precision, enabled=enabled):
            for source in self.sources:
                examples, objective = source.select_validation(limit), source.objective
                answers = self.model.map(partial(objective.predict, lm), examples)
                if parallel.is_main:
                    one = objective.compute_metrics(answers, examples, lm)
                    metrics[source.config.name] = one.with_main_metric(
                        None if metrics else self.train.metric
                    )
                count += len(examples)
        [seconds] = parallel.all_reduce_max(time.monotonic() - begin)
        self.seconds_per_example = seconds / max(1, count)
        return metrics


@dataclass
class FinishedRun:
    """A run that has used up its budget.

    Args:
        run: the run folder.
        log: the progress line.
        recipe: the complete recipe of the run.
        corpus: the data of the run.
        kept: provides the trained model and the best weights saved during training.
        validation: computes the metrics on labelled validation examples.
    """

    run: RunFolder
    log: ProgressLine
    recipe: Recipe
    corpus: Corpus
    kept: KeptWeights
    validation: ValidationMetrics

    def __post_init__(self) -> None:
        self.model = self.kept.model
        self.lm = self.model.lm

    def evaluate_and_write(self, state: TrainState) -> None:
        """Select the best weights, evaluate them, and write the model, metrics and report.

        All processes must call this method. Only rank 0 writes files.
        """
        if state.best_step:
            self.kept.load_best()
        print_message, run = self.log.print_message, self.run
        self.log.update(translated("progress.writing_model"))
        self.model.gather()
        if self.model.parallel.is_main:
            objective = self.recipe.objectives[0]
            objective.untie_weights(self.model.whole)
            for name, model in objective.models_to_save(self.model.whole).items():
                if name:
                    with new_model_folder(run.path / name, overwrite=True) as folder:
                        write_model(folder, model, self.corpus.tokenizer)
            for file in (EVALUATION, PREDICTIONS):  # of an earlier final evaluation
                (run.path / file).unlink(missing_ok=True)
        begin = time.monotonic()
        metrics = self._write_best_weights()
        took = time.monotonic() - begin
        if not self.model.parallel.is_main:
            return
        end = {"finished": True, "evaluation_seconds": took if metrics else 0.0}
        step = state.best_step or state.step
        excerpts = [*self.corpus.iter_excerpts()]
        samples = [{"step": state.step} | one for one in generate_samples(self.lm, excerpts)]
        metadata = run.read_metadata() | end | {"samples": samples, "weights_step": step}
        run.write_metadata(metadata)
        preparation = state.preparation_seconds or 0.0
        before = translated("run.after_preparation", time=format_duration(preparation))
        print_message(
            "done",
            "run.done",
            steps=format_count(state.step, "step"),
            tokens=format_count(state.tokens, "token"),
            time=format_duration(state.seconds - preparation),
            before=before if preparation > 10 else "",
        )
        if state.evals_since_best >= (self.recipe.train.patience or math.inf):
            print_message("stopped", "run.stopped_early", count=state.evals_since_best)
        if state.best_step and "metric" not in metadata:
            print_message("best", "run.best_by_loss", step=state.best_step)
        if metrics:
            if state.best_step and "metric" in metadata:
                print_message(
                    "best",
                    "run.best_by_metric",
                    step=state.best_step,
                    metric=metadata["metric"],
                    some=self.corpus.num_metric_examples(self.validation.limit),
                )
            kinds = (
                s.objective.kind for s in self.corpus.example_sources if s.config.name in metrics
            )
            mixed = merge_metrics(metrics)
            write_evaluation(run.path, next(kinds), mixed)
            values = ", ".join(
                f"{name} {value:.4f}"
                if math.isfinite(value)
                else translated("run.undefined_metric", name=name)
                for name, value in mixed.values.items()
            )
            print_message(
                "metrics",
                "run.metrics",
                values=values,
                count=len(mixed.predictions),
                time=format_duration(took),
            )
            for note in mixed.notes:
                print_message("", "run.note", note=translate_english(note))
            for number, text in enumerate(mixed.calibration.render() if mixed.calibration else ()):
                self.log.print_line(labelled("" if number else "certainty", text))
        write_report(run.path)
        summary = summarize(read_run(run.path))
        if summary.stuck:
            self.log.warn(summary.verdict)
        self.log.print_line(labelled("report", str(run.report)))

    def print_suggested_commands(self) -> None:
        """Print commands with which users can try out the model, one for each kind of objective."""
        texts = {objective.kind: text for objective, text in self.corpus.iter_excerpts()}
        first = {objective.kind: objective for objective in reversed(self.recipe.objectives)}
        run, known = self.run.name, reversed(first.items())
        commands = dict.fromkeys(
            one.suggest_command(run, self.lm, texts.get(k, "")) for k, one in known
        )
        for number, command in enumerate(commands):
            self.log.print_line(labelled("" if number else "try_it", f"trivium {command}"))

    def _write_best_weights(self) -> dict[str, Metrics]:
        """Evaluate the candidate weights, write the best candidate, and return its metrics.

        Without labelled examples there is only one candidate, and the metrics are empty. Otherwise
        the result maps the name of each data source to its metrics on rank 0. The model has been
        gathered and has the weights of the first candidate.
        """
        self._write_model()
        if not self.corpus.example_sources:
            return {}
        candidates = self.kept.candidates()
        results: list[dict[str, Metrics]] = []
        share = _END_FRACTION / len(candidates)
        limit = self.validation.count_affordable_examples(self.recipe.train.eval_examples, share)
        try:
            with handle_signals(signal.default_int_handler):  # raises KeyboardInterrupt
                for number, load_candidate in enumerate(candidates):
                    if number:
                        load_candidate()
                    self._announce_final_evaluation(limit)
                    results.append(self.validation.evaluate(limit))
        except KeyboardInterrupt:
            if not self.model.parallel.is_main:
                raise
            self._warn_about_stopped_evaluation()
            if self.model.parallel.size > 1:  # the other processes have ended
                self.lm = load(self.run.path, device="cpu") if self.model.is_sharded else self.lm
                return {}
        scores = [next((one.score for one in result.values()), 0.0) for result in results]
        best = max(range(len(scores)), key=scores.__getitem__, default=0)
        [best] = map(int, self.model.parallel.all_reduce_max(best))  # known to rank 0 only
        if len(candidates) > 1:
            candidates[best]()
        self.model.gather()
        if best:
            self._write_model()
        return self._add_generations(results[best] if results else {})

    def _warn_about_stopped_evaluation(self) -> None:
        """Warn that the final evaluation was interrupted, and print the command to repeat it."""
        self.log.warn(
            f"the evaluation was stopped: the model is in {self.run.name}, without its metrics;"
            f" `trivium eval {self.run.name} FILE --limit 100` measures it on a file"
        )

    def _add_generations(self, chosen: dict[str, Metrics]) -> dict[str, Metrics]:
        """Add generated texts to the metrics of each data source. Returns the new metrics."""
        named = {source.config.name: source.objective for source in self.validation.sources}
        return {name: named[name].add_generations(self.lm, one) for name, one in chosen.items()}

    def _announce_final_evaluation(self, limit: int | None) -> None:
        """Show in the progress line that the final evaluation starts.

        If the final evaluation covers more examples than those during training, also print a
        permanent line.
        """
        count, every = (
            self.corpus.num_validation_examples(limit),
            self.corpus.num_validation_examples(None),
        )
        note = translated("run.evaluating", count=count, every=every)
        self.log.update(note)
        if count > self.corpus.num_validation_examples(self.validation.limit):
            # The time is unknown if a resumed run had no step left to train.
            seconds = self.validation.seconds_per_example * count
            note += (
                translated("run.evaluating_time", time=format_duration(seconds)) if seconds else ""
            )
            self.log.print_line(note + translated("run.evaluating_can_stop"))

    def _write_model(self) -> None:
        """Write the model with its tokenizers and settings to the run folder, on rank 0 only.

        An adapter is merged into the written weights, and quantised weights are dequantised. If
        the recipe says so, the adapter is also written separately.
        """
        if not self.model.parallel.is_main:
            return
        module, config, settings = self.lm.module, self.recipe.adapter, self.lm.settings
        if config.rank:
            if config.save_separately:
                folder, model_type = self.run.path / "adapter", settings.config.get("model_type")
                base = self.recipe.model.init_from
                save_adapter(folder, module, config.lora, base=base, model_type=model_type)
                write_adapter_settings(folder, settings)
            module = build(self.lm.spec, device="meta")
            module.load_state_dict(merged_state(self.lm.module, "cpu"), assign=True)
        tokenizers = self.corpus.tokenizer, self.corpus.source_tokenizer
        write_model(self.run.path, module, *tokenizers, settings)
