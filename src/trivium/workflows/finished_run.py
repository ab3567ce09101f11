"""The end of a run: choose and evaluate the weights, write the model, metrics and report."""

from __future__ import annotations

import copy
import math
import signal
import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trivium.interop.peft_format import save_adapter
from trivium.language_model import LanguageModel
from trivium.messages import translated, translated_english
from trivium.model_folder import new_model_folder, write_model
from trivium.models import build
from trivium.objectives import Metrics
from trivium.objectives.task_metrics import EVALUATION, PREDICTIONS, merge_metrics, write_metrics
from trivium.progress import ProgressLine, format_count, format_duration, handle_signals, labelled
from trivium.report import read_run, summarize, write_report
from trivium.train import defaults
from trivium.train.distributed import SINGLE_PROCESS, Parallel
from trivium.train.kept_weights import KeptWeights
from trivium.train.recipe import Recipe
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import TrainState
from trivium.workflows.corpus import Corpus

# Shares of a budget in minutes that an evaluation during training, and those at its end, may take;
# and examples that are always measured.
_EVAL_SHARE, _END_SHARE, _PROBED = 0.1, 0.25, 16


@dataclass
class ValidationMetrics:
    """Computes the metrics of a model on the validation examples of every labelled source.

    Each process predicts a part of the examples. If the model is sharded, the first process
    predicts all of them.

    Args:
        corpus: the sources.
        recipe: the recipe with every value decided.
        precision: the precision of activations.
        parallel: the processes of the run.
        is_sharded: whether each process holds only a shard of the model.
    """

    corpus: Corpus
    recipe: Recipe
    precision: torch.dtype
    parallel: Parallel
    is_sharded: bool

    def __post_init__(self) -> None:
        self.sources = [source for source in self.corpus.examples if source.valid]
        self.train = self.recipe.train
        self.minutes = None if self.train.eval_examples else self.train.minutes
        """The budget in minutes to which evaluations are cut, or None."""
        self.predicts_here = self.parallel.is_main or not self.is_sharded
        """Whether this process answers held-out examples."""
        self.answering = SINGLE_PROCESS if self.is_sharded else self.parallel
        """The processes that answer held-out examples."""
        self.limit = defaults.eval_examples(self.recipe)
        """The number of examples per source in an evaluation during training; None for all."""
        self.seconds_per_example = 0.0  # in the last evaluation

    def prepare(self, lm: LanguageModel, known: int | None) -> None:
        """Check `train.metric`, and limit evaluations to a fraction of a budget in minutes.

        Some examples are measured to find out how many examples the limit allows.

        Args:
            lm: the model.
            known: the limit that a resumed run has used; None for a new run.

        Raises:
            RecipeError: the task has no metric of this name.
        """
        is_cut = self.minutes is not None and bool(self.sources) and self.parallel.size == 1
        if self.predicts_here and (self.train.metric or (is_cut and known is None)):
            self.measure(lm, 1)
            self.seconds_per_example = 0.0  # the libraries of the metrics were loaded
        if is_cut and known is None:
            self.measure(lm, _PROBED)
        if is_cut:
            self.limit = known or self.affordable(self.limit, _EVAL_SHARE)

    def affordable(self, limit: int | None, share: float) -> int | None:
        """Return how many examples per source fit in a fraction of the budget in minutes.

        The result is at most `limit`. If the budget is not in minutes, the result is `limit`.
        """
        each = self.seconds_per_example * len(self.sources)
        if self.minutes is None or not each:
            return limit
        fitting = max(_PROBED, int(60.0 * self.minutes * share / each))
        return fitting if limit is None else min(limit, fitting)

    def measure(self, lm: LanguageModel, limit: int | None) -> dict[str, Metrics]:
        """Return the metrics on `limit` examples of every source, by the name of the source.

        All processes that predict take part; only the first process gets the metrics. If `limit` is
        None, all examples are used.

        Raises:
            RecipeError: the first source has no metric `train.metric`.
        """
        lm.module.eval()
        parallel, enabled = self.answering, self.precision is not torch.float32
        metrics: dict[str, Metrics] = {}
        count, begin = 0, time.monotonic()
        with torch.autocast(lm.module.device.type, self.precision, enabled=enabled):
            for source in self.sources:
                examples, objective = source.validation_examples(limit), source.objective
                answers = parallel.map(partial(objective.predict, lm), examples)
                if parallel.is_main:
                    one = objective.compute_metrics(answers, examples, lm)
                    metrics[source.config.name] = one.with_main(
                        None if metrics else self.train.metric
                    )
                count += len(examples)
        [seconds] = parallel.all_reduce_max(time.monotonic() - begin)
        self.seconds_per_example = seconds / max(1, count)
        return metrics


@dataclass
class FinishedRun:
    """A run whose budget is used up, in a process that predicts validation examples.

    Args:
        run: the folder of the run.
        log: the progress line.
        recipe: the recipe with every value decided.
        corpus: the data.
        kept: the candidate weights of the trained model.
        validation: the metrics of labelled examples.
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

    def write(self, state: TrainState) -> None:
        """Choose the weights, evaluate them on all validation examples, and write all files.

        Only the first process writes.
        """
        self.kept.load_best()
        if not self.model.parallel.is_main:
            self._choose_weights()
            return
        print_message, run = self.log.print_message, self.run
        self.log.update(translated("progress.writing_model"))
        objective = self.recipe.objectives[0]
        objective.untie_weights(self.model.whole)
        for name, model in objective.models(self.model.whole).items():
            if name:
                with new_model_folder(run.path / name, overwrite=True) as folder:
                    write_model(folder, model, self.corpus.tokenizer)
        for file in (EVALUATION, PREDICTIONS):  # of an earlier end of this run
            (run.path / file).unlink(missing_ok=True)
        begin = time.monotonic()
        metrics = self._choose_weights()
        took = time.monotonic() - begin
        end = {"finished": True, "evaluation_seconds": took if metrics else 0.0}
        end |= {"samples": self._samples(state.step), "weights_step": state.best_step or state.step}
        metadata = run.read_metadata() | end
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
                    some=self.corpus.num_measured(self.validation.limit),
                )
            kinds = (s.objective.kind for s in self.corpus.examples if s.config.name in metrics)
            mixed = merge_metrics(metrics)
            write_metrics(run.path, next(kinds), mixed)
            known = {key: value for key, value in mixed.values.items() if math.isfinite(value)}
            values = ", ".join(f"{key} {value:.4f}" for key, value in known.items())
            print_message(
                "metrics",
                "run.metrics",
                values=values,
                count=len(mixed.predictions),
                time=format_duration(took),
            )
            for note in mixed.notes:
                print_message("", "run.note", note=translated_english(note))
            for number, text in enumerate(mixed.calibration.lines() if mixed.calibration else ()):
                self.log.print_line(labelled("" if number else "certainty", text))
        write_report(run.path)
        summary = summarize(read_run(run.path))
        if summary.stuck:
            self.log.warn(summary.verdict)
        self.log.print_line(labelled("report", str(run.report)))

    def suggest(self) -> None:
        """Print a command to try the model, for each kind of objective."""
        texts = {objective.kind: text for objective, text in self.corpus.validation_texts()}
        first = {objective.kind: objective for objective in reversed(self.recipe.objectives)}
        run, known = str(self.run.path), reversed(first.items())
        commands = dict.fromkeys(
            one.suggest_command(run, self.lm, texts.get(k, "")) for k, one in known
        )
        for number, command in enumerate(commands):
            self.log.print_line(labelled("" if number else "try_it", f"trivium {command}"))

    def _choose_weights(self) -> dict[str, Metrics]:
        """Write a model with the best candidate weights, and return its metrics.

        An adapter is merged. Without labelled examples there is one candidate, and no metrics.
        Otherwise the candidates (`KeptWeights.candidates`) are evaluated, and the best one is
        written.
        """
        module, config = self.model.lm.module, self.recipe.adapter
        if config.rank and config.save_separately and self.model.parallel.is_main:
            base = self.recipe.model.init_from
            save_adapter(self.run.path / "adapter", module, config.lora, base=base)
        if not self.corpus.examples and not config.rank:
            self._write_model()
            return {}
        candidates = self.kept.candidates()
        self.lm = copy.copy(self.model.lm)
        self.lm.module = build(self.lm.spec, seed=0, device=module.device)
        self.lm.module.load_state_dict(candidates[0])
        self._write_model()
        results: list[dict[str, Metrics]] = []
        share = _END_SHARE / len(candidates)
        limit = self.validation.affordable(self.recipe.train.eval_examples, share)
        try:
            with handle_signals(signal.default_int_handler):  # raises KeyboardInterrupt
                for tensors in candidates:
                    self.lm.module.load_state_dict(tensors)
                    self._announce_evaluation(limit)
                    results.append(self.validation.measure(self.lm, limit))
        except KeyboardInterrupt:
            if not self.model.parallel.is_main:
                raise
            self.log.warn(
                f"the evaluation was stopped: the model is in {self.run.path}, without its metrics;"
                f" `trivium eval {self.run.path} FILE --limit 100` measures it on a file"
            )
        scores = [next((one.score for one in result.values()), 0.0) for result in results]
        best = max(range(len(scores)), key=scores.__getitem__, default=0)
        self.lm.module.load_state_dict(candidates[best])
        if best:
            self._write_model()
        chosen = results[best] if results else {}
        named = {source.config.name: source.objective for source in self.validation.sources}
        return {name: named[name].add_generations(self.lm, one) for name, one in chosen.items()}

    def _announce_evaluation(self, limit: int | None) -> None:
        """Show that the final evaluation begins.

        A line is printed if the final evaluation is larger than those during training.
        """
        count, every = (
            self.corpus.num_validation_examples(limit),
            self.corpus.num_validation_examples(None),
        )
        note = translated("run.evaluating", count=count, every=every)
        self.log.update(note)
        if count > self.corpus.num_validation_examples(self.validation.limit):
            # Unknown where nothing was left to train.
            seconds = self.validation.seconds_per_example * count
            note += (
                translated("run.evaluating_time", time=format_duration(seconds)) if seconds else ""
            )
            self.log.print_line(note + translated("run.evaluating_can_stop"))

    def _write_model(self) -> None:
        """Write the model folder that users load. Only the first process writes."""
        if not self.model.parallel.is_main:
            return
        tokenizers = self.corpus.tokenizer, self.corpus.source_tokenizer
        write_model(self.run.path, self.lm.module, *tokenizers, self.lm.settings)

    def _samples(self, step: int) -> list[dict[str, Any]]:
        """Return prompts from validation documents with the model's output, for the report."""
        samples = []
        self.lm.module.eval()
        for objective, text in self.corpus.validation_texts():
            with warnings.catch_warnings(action="ignore"):  # rows may be shorter than a prompt
                sample = objective.sample(self.lm, text)
            if sample is not None:
                samples.append({"step": step, "prompt": sample[0], "output": sample[1]})
        return samples
