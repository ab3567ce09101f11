"""Pretraining: from raw text to a model that knows its language."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trivium.data.shards import TRAIN, VALIDATION
from trivium.errors import RecipeError
from trivium.inference.saved import save_model
from trivium.objectives import (
    Bidirectional,
    Causal,
    Denoising,
    Masked,
    Mixture,
    ReplacedToken,
    SentencePairs,
    SpanCorruption,
)
from trivium.report.html import write_report
from trivium.spec import AnySpec
from trivium.train import defaults, hardware
from trivium.train.checkpoint import TrainState, save_weights
from trivium.train.loop import Evaluation
from trivium.train.memory import fitting_micro_batch
from trivium.train.progress import ProgressLine, TrainingTable, duration
from trivium.train.recipe import Recipe, load_recipe
from trivium.train.run import RunFolder
from trivium.train.validation import MixedValidation, Validation
from trivium.workflows.assembly import (
    build_model,
    build_optimizers,
    build_plan,
    fit_spec,
    models_of,
    trained_specs,
    training_flops,
)
from trivium.workflows.baselines import BASELINES, count_losses
from trivium.workflows.claim import Claim, claimed
from trivium.workflows.corpus import make_corpus
from trivium.workflows.feeding import TextRows, rows_of
from trivium.workflows.objectives import build_mixture, check_kinds
from trivium.workflows.samples import draw_samples
from trivium.workflows.start import (
    GENERATOR,
    check_tokenizer,
    recipe_or_model,
    start_settings,
    starting_model,
    take_weights,
    writing_settings,
)
from trivium.workflows.training import Training

# What a resumed run may not change: rows, noise and weights follow from it.
_FIXED = ("seed", "model", "tokenizer", "data", "objective")


def pretrain(
    recipe: str | os.PathLike[str] | Recipe,
    *,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    out: str | os.PathLike[str],
    changes: Sequence[str] | dict[str, Any] = (),
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Train a model from raw text; everything it makes is in the run folder `out`.

    Args:
        recipe: a preset ("bert-small"), a shipped recipe ("textbook-bert"), a TOML file, a Recipe,
            or the folder of a model to train on, ours or Hugging Face's.
        data: files, folders or globs of text, or one folder of shards; they replace `data.paths`.
        changes: ["train.lr=3e-4", ...] or a nested dict, applied to the recipe.
        resume: go on with the run in `out` from its last good checkpoint; exactly, in that on a
            CPU metrics and weights are those of a run that never stopped.
        overwrite: replace a run that `out` holds.
        console: where to write progress; standard error unless given.

    Raises:
        TriviumError: a recipe, text, tokenizer or checkpoint that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    started = time.monotonic()
    line = ProgressLine(console or Console(stderr=True))
    run = RunFolder(out)
    paths = (data,) if isinstance(data, str | os.PathLike) else tuple(data)
    if resume:
        chosen = _resumed_recipe(run, changes)
    else:
        chosen = recipe_or_model(recipe, changes)
        if paths:
            if chosen.data.mix is not None:
                raise RecipeError(
                    "this recipe names its sources in [[data.mix]]: leave --data out, or set "
                    "data.mix."
                )
            section = chosen.data.model_copy(update={"paths": tuple(str(path) for path in paths)})
            chosen = chosen.model_copy(update={"data": section})
    job = _Pretraining(chosen, run, line, started, resume=resume)
    with line.running(), claimed(run, resume=resume, overwrite=overwrite) as claim:
        return job.go(claim)


@dataclass
class _Pretraining:
    """One call of `pretrain`, step by step."""

    recipe: Recipe
    run: RunFolder
    line: ProgressLine
    started: float
    resume: bool

    def go(self, claim: Claim) -> RunFolder:
        hardware.keep_freed_memory()
        described = self.recipe.spec
        self.recipe = defaults.with_objective(self.recipe, described)
        check_kinds(described, [one.kind or "" for one in self.recipe.objective.questions])
        _check_length(self.recipe, described)
        device = hardware.choose_device(self.recipe.train.device)
        precision = hardware.choose_precision(self.recipe.train.precision, device)
        self.run.path.mkdir(parents=True, exist_ok=True)
        self.run.write_text(self.run.recipe, self.recipe.to_toml())
        start = self.recipe.model.start
        if start is not None and not self.run.tokenizer.is_file():
            tokenizer = starting_model(start).tokenizer
            assert tokenizer is not None
            tokenizer.save(self.run.tokenizer)
        self.corpus = make_corpus(self.recipe, described, self.run, self.line)
        self.tokenizer = self.corpus.tokenizer
        if start is not None:
            check_tokenizer(self.tokenizer, self.run.tokenizer, start)
        recipe = defaults.complete(self.corpus.recipe, described)
        told = start_settings(self.run.path, recipe)
        self.mixture = build_mixture(
            recipe,
            self.tokenizer,
            lambda: rows_of(self.corpus, recipe, self.corpus.sources[0]),
            decoder_start=next(iter(told.decoder_start), None),
        )
        writing_settings(self.mixture.objectives[0], told).write(self.run.path)
        self.spec = fit_spec(
            described, self.tokenizer, self.mixture.objectives, started=start is not None
        )
        self.rows = TextRows(self.corpus, recipe)
        self.validation = self.rows.validation(self.mixture)
        recipe = self._with_micro_batch(recipe, device, precision)
        per_step = _rows_per_step(recipe)
        self.plan = build_plan(
            recipe,
            steps_an_epoch=sum(map(len, self.rows.train)) / per_step,
            tokens_a_step=per_step * recipe.data.length,
            device=device,
            precision=precision,
            started=self.started,
        )
        self.run.write_text(self.run.recipe, recipe.to_toml())
        self.run.write_json(self.run.spec, self.spec.to_dict())
        if not self.run.tokenizer.is_file():
            self.tokenizer.save(self.run.tokenizer)
        assert recipe.train.micro_batch is not None
        self.recipe = recipe
        self.model = build_model(recipe, self.spec, device)
        if recipe.train.compile or (recipe.train.compile is None and device.type == "cuda"):
            self.model.compile_blocks()
        training = Training(
            run=self.run,
            line=self.line,
            model=self.model,
            optimizers=build_optimizers(recipe, self.model),
            feed=self.rows.feed(
                self.mixture,
                rows_per_step=_rows_per_step(recipe),
                micro_batch=recipe.train.micro_batch,
            ),
            plan=self.plan,
            table=self._table,
            evaluation=self._evaluate,
            keep_checkpoints=recipe.train.keep_checkpoints,
            tensorboard=recipe.train.tensorboard,
        )
        state = training.state(resume=self.resume, new=self._take_start)
        self._introduce()
        state = training.go(state, claim)
        self._finish(state)
        return self.run

    def _with_micro_batch(
        self, recipe: Recipe, device: torch.device, precision: torch.dtype
    ) -> Recipe:
        trained = trained_specs(recipe, self.spec)
        if recipe.train.micro_batch is not None:
            return recipe
        fitting = fitting_micro_batch(
            *trained,
            rows=_rows_per_step(recipe),
            length=recipe.data.length,
            precision=precision,
            device=device,
        )
        section = recipe.train.model_copy(update={"micro_batch": fitting})
        return recipe.model_copy(update={"train": section})

    def _take_start(self) -> None:
        """The weights that a new run begins with, where it goes on from a model."""
        start = self.recipe.model.start
        if start is not None:
            take_weights(start, self.model)
            self.line.say(f"start      the weights of {start}")

    def _introduce(self) -> None:
        """Say what is about to be trained, on what, for how long, and note it for the report."""
        recipe, spec, count = self.recipe, self.spec, self.corpus.count
        self.facts: dict[str, Any] = {
            "unigram_loss": self._guessing,
            "num_parameters": spec.num_parameters,
            "train_tokens": count("tokens", TRAIN),
            "valid_tokens": count("tokens", VALIDATION),
            "documents": count("documents"),
            "duplicates_dropped": count("duplicates"),
            "bytes_per_token": count("text_bytes") / max(1, count("tokens")),
            "vocab_size": self.tokenizer.vocab_size,
            "tokenizer_kind": self.tokenizer.kind,
            "device": hardware.describe_device(self.plan.device),
            "precision": "bf16" if self.plan.precision is torch.bfloat16 else "fp32",
            "threads": torch.get_num_threads(),
            "peak_flops": hardware.peak_flops(self.plan.device, self.plan.precision),
            "flops_per_token": self._flops,
            "torch": torch.__version__,
            "trivium": version("trivium"),
            "samples": [],
            **self._more_facts(),
        }
        self._check_threads()
        self.run.write_json(self.run.facts, self.facts)
        facts, say = self.facts, self.line.say
        say(
            f"text       {facts['documents']:,} documents, {facts['train_tokens']:,} tokens to "
            f"train on, {facts['valid_tokens']:,} held out, {facts['duplicates_dropped']:,} "
            "duplicate documents dropped"
        )
        say(
            f"model      {recipe.model.preset or recipe.model.start or spec.family}: "
            f"{spec.num_parameters:,} parameters, "
            f"{facts['tokenizer_kind']} vocabulary of {facts['vocab_size']:,}"
        )
        budget = ", ".join(f"{value:g} {name}" for name, value in recipe.train.budget.items())
        say(
            f"training   {budget}, {recipe.train.batch_tokens:,} tokens a step in "
            f"{facts['precision']} on {facts['device']} ({facts['threads']} threads)"
        )
        if self._guessing is not None:
            say(f"guessing by word frequency gives a loss of {self._guessing:.3f} nats a token")

    def _more_facts(self) -> dict[str, Any]:
        """What there is to tell of several losses, and of a model that is trained beside."""
        found: dict[str, Any] = {}
        if len(self.mixture.terms) > 1:
            found["loss_terms"] = list(self.mixture.terms)
        if isinstance(self.validation, MixedValidation):
            groups = (name for part in self.validation.parts for name in part.groups)
            found["loss_groups"] = list(dict.fromkeys(groups))
        for generator in trained_specs(self.recipe, self.spec)[1:]:
            found["generator_parameters"] = generator.num_parameters
        return found

    @cached_property
    def _guessing(self) -> float | None:
        """The loss of guessing by word frequency, and of pairs by a coin; None if it tells nothing.

        Replaced tokens have no such loss: what there is to find depends on the generator.
        """
        if any(isinstance(objective, ReplacedToken) for objective in self.mixture.objectives):
            return None
        coins = math.log(2.0) * (len(self.mixture.terms) - 1)
        return self.corpus.unigram_loss(self.rows.shares) + coins

    def _check_threads(self) -> None:
        """Sums on another number of threads round otherwise: say so where it was changed."""
        if not (self.resume and self.run.facts.is_file()):
            return
        before = self.run.read_facts().get("threads", torch.get_num_threads())
        if before != torch.get_num_threads():
            self.line.say(
                f"this run began on {before} threads and goes on with {torch.get_num_threads()}: "
                "results will be as good, but not equal to the last bit."
            )

    def _evaluate(self, state: TrainState) -> Evaluation:
        """Validation loss, nothing without a validation split."""
        if self.validation is None:
            return Evaluation()
        return Evaluation(self.validation.losses(self.model, self.plan.precision))

    def _table(self, seconds_left: Callable[[float], float]) -> TrainingTable:
        return TrainingTable(
            self.line,
            unigram_loss=self._guessing,
            flops_per_token=self._flops,
            peak_flops=hardware.peak_flops(self.plan.device, self.plan.precision),
            seconds_left=seconds_left,
        )

    @property
    def _flops(self) -> float:
        return training_flops(self.recipe, self.spec, self.mixture)

    def _write_baselines(self) -> None:
        """What counting reaches on the same text, for models that tell the next token."""
        file, validation = self.run.path / BASELINES, self.validation
        tells_next = isinstance(self.mixture.objectives[0], Causal | Bidirectional)
        if not isinstance(validation, Validation) or not tells_next or file.is_file():
            return
        self.line.update("counting n-grams")
        self.run.write_json(file, count_losses(self.corpus.sources[0].shards, validation))

    def _finish(self, state: TrainState) -> None:
        """The model, samples, report, and where to go next."""
        model, generator = models_of(self.model)
        if generator is not None:
            save_model(self.run.path / GENERATOR, generator.spec, generator, self.tokenizer)
        save_weights(self.run.weights, model)
        self.facts["samples"] = draw_samples(
            model,
            self.tokenizer,
            [source.shards for source in self.corpus.sources],
            state.step,
            self.mixture,
            generator=generator,
        )
        self.run.write_json(self.run.facts, self.facts)
        self._write_baselines()
        write_report(self.run.path)
        say = self.line.say
        say(
            f"done       {state.step:,} steps, {state.tokens:,} tokens in {duration(state.seconds)}"
        )
        say(f"report     {self.run.report}")
        say(f"try it     trivium {_how_to_try(self.mixture, self.run)}")


def _how_to_try(mixture: Mixture, run: RunFolder) -> str:
    """A command that asks the model, after its name."""
    match mixture.objectives[0]:
        case Masked() | SentencePairs():
            return f'fill-mask {run.path} "... [MASK] ..."'
        case ReplacedToken():
            return f'fill-mask {run.path / GENERATOR} "... [MASK] ..."'
        case SpanCorruption() | Denoising():
            return f'fill-mask {run.path} "Once upon a <mask>, there was a king."'
    return f'generate {run.path} "Once upon a time"'


def _rows_per_step(recipe: Recipe) -> int:
    assert recipe.train.batch_tokens is not None
    return max(1, recipe.train.batch_tokens // recipe.data.length)


def _check_length(recipe: Recipe, spec: AnySpec) -> None:
    if spec.max_length is not None and recipe.data.length > spec.max_length:
        raise RecipeError(
            f"data.length = {recipe.data.length}, but this model's positions end at "
            f"{spec.max_length}: choose a shorter length."
        )


def _resumed_recipe(run: RunFolder, changes: Sequence[str] | dict[str, Any]) -> Recipe:
    if not run.recipe.is_file():
        raise RecipeError(f"{run.path}: there is no run to resume here (no recipe.toml).")
    before = load_recipe(Path(run.recipe))
    after = load_recipe(before, changes)
    for name in _FIXED:
        if getattr(before, name) != getattr(after, name):
            raise RecipeError(
                f"a resumed run cannot change [{name}]: what was trained so far depends on it. "
                "Start a new run with another --out."
            )
    if before.train.batch_tokens != after.train.batch_tokens:
        raise RecipeError("a resumed run cannot change train.batch_tokens: the rows depend on it.")
    return after
