"""Fine-tuning: a model there is, or a new one, is taught a task by labelled examples."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trivium.adapt import LoRA, ParameterCounts, add_lora, freeze, merged_state, save_adapter
from trivium.data import Examples
from trivium.data.labelled import divide
from trivium.errors import DataError, RecipeError
from trivium.inference.saved import SOURCE_TOKENIZER
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule, build
from trivium.objectives import Objective
from trivium.objectives.told_tokens import ToldTokens
from trivium.report.html import write_report
from trivium.train import hardware
from trivium.train.checkpoint import TrainState, load_tensors, save_tensors
from trivium.train.feed import ExampleFeed
from trivium.train.finetune_defaults import LONGEST, complete_finetuning
from trivium.train.finetune_recipe import FinetuneRecipe, load_finetune_recipe
from trivium.train.loop import Evaluation
from trivium.train.memory import fitting_micro_batch
from trivium.train.progress import ProgressLine, TrainingTable, duration
from trivium.train.recipe import apply_changes
from trivium.train.run import RunFolder
from trivium.train.validation import example_losses
from trivium.workflows.assembly import build_optimizers, build_plan
from trivium.workflows.averaging import average_of_last
from trivium.workflows.beginning import Beginning, begin
from trivium.workflows.claim import Claim, claimed
from trivium.workflows.fingerprint import check_examples, examples_digest
from trivium.workflows.measurement import show_measured, write_measured
from trivium.workflows.tasks import Measured, Task, build_task
from trivium.workflows.training import Training

_FIXED = ("seed", "task", "model", "adapter", "tokenizer", "data")
_BEST = "best.safetensors"


def finetune(
    task: str,
    *,
    model: str | os.PathLike[str] = "",
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    validation: float | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    out: str | os.PathLike[str],
    changes: Sequence[str] | dict[str, Any] = (),
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Teach a model a task; everything it makes is in the run folder `out`.

    Args:
        task: "classification", "tagging", "qa", "translation", "text-to-text", "summarization",
            "lm", or a recipe file.
        model: a run, a checkpoint, a Hugging Face folder or name, or a preset (random weights).
        data: labelled files; they replace `data.paths`.
        validation: a fraction of the examples, or files.
        changes: ["train.epochs=3", ...] or a nested dict, applied to the recipe.
        resume: go on with the run in `out` from its last good checkpoint.
        overwrite: replace a run that `out` holds.
        console: where to write progress; standard error unless given.

    Raises:
        TriviumError: examples, a model or a recipe that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    started = time.monotonic()
    line, run = ProgressLine(console or Console(stderr=True)), RunFolder(out)
    if resume:
        recipe = _resumed(run, changes)
    else:
        given: dict[str, Any] = {"data": {"paths": _paths(data)} if data else {}}
        if validation is not None:
            fraction = isinstance(validation, float | int)
            given["data"]["validation"] = validation if fraction else _paths(validation)
        if model:
            given["model"] = {"start": os.fspath(model)}
        if task.endswith(".toml"):
            tree = load_finetune_recipe(task).model_dump(mode="json", exclude_none=True)
        else:
            tree = {"task": {"kind": task}, "model": {"start": ""}}
        apply_changes(tree, given)
        recipe = load_finetune_recipe(tree, changes)
    if not recipe.model.start:
        raise RecipeError("say which model to teach: --model RUN, FOLDER or PRESET.")
    job = _Finetuning(recipe, run, line, started, resume)
    with line.running(), claimed(run, resume=resume, overwrite=overwrite) as claim:
        return job.go(claim)


def _paths(given: Any) -> list[str]:
    several = (given,) if isinstance(given, str | os.PathLike) else given
    return [os.fspath(path) for path in several]


@dataclass
class _Finetuning:
    """One call of `finetune`, step by step."""

    recipe: FinetuneRecipe
    run: RunFolder
    line: ProgressLine
    started: float
    resume: bool

    def go(self, claim: Claim) -> RunFolder:
        hardware.keep_freed_memory()
        device = hardware.choose_device(self.recipe.train.device)
        precision = hardware.choose_precision(self.recipe.train.precision, device)
        self.task: Task[Any] = build_task(self.recipe.task, self.recipe.data)
        self.train_examples, self.valid_examples = self._read()
        if self.resume and self.run.facts.is_file():
            check_examples(self.run.read_facts(), self.train_examples, self.valid_examples)
        found = begin(self.recipe, self.task, self.train_examples, self.run, self.line)
        self.lm, encoded, valid = self._encoded(found, device)
        self.recipe = complete_finetuning(
            self.recipe,
            self.lm.spec,
            len(encoded),
            scratch=found.scratch,
            writes=self.task.writes,
        )
        assert self.recipe.train.batch is not None
        self.plan = build_plan(
            self.recipe,
            steps_an_epoch=len(encoded) / self.recipe.train.batch,
            device=device,
            precision=precision,
            started=self.started,
        )
        self._write_beginning()
        adapted = self._adapt()
        training = Training(
            run=self.run,
            line=self.line,
            model=self.lm.module,
            optimizers=build_optimizers(self.recipe, self.lm.module),
            feed=self._feed(encoded, precision, device),
            plan=self.plan,
            table=self._table,
            evaluation=lambda state: self._evaluate(state, valid),
            keep_checkpoints=max(self.recipe.train.keep_checkpoints, self.recipe.train.average),
            tensorboard=self.recipe.train.tensorboard,
        )
        state = training.state(resume=self.resume, new=lambda: None)
        self._introduce(encoded, adapted)
        state = training.go(state, claim)
        self._finish(state)
        return self.run

    def _read(self) -> tuple[list[Any], list[Any]]:
        """Training and validation examples."""
        section = self.recipe.data
        if not section.paths and not section.mix:
            raise DataError("there are no examples to learn from: give --data FILE.")
        train, held_out = self.task.read(section.paths), section.validation
        if not isinstance(held_out, float | int):
            return train, self.task.read(held_out, train)
        if any(source.get("validation") for source in section.mix):
            return train, self.task.read((), train)
        return divide(train, float(held_out), self.recipe.seed)

    def _encoded(
        self, found: Beginning, device: torch.device
    ) -> tuple[LanguageModel, Examples, Examples | None]:
        """The model with the heads of the task, and the examples as numbers."""
        task, start = self.task, found.model
        settings = task.settings(start.settings, self.train_examples)
        spec = start.spec.with_dropout(self.recipe.model.dropout)
        spec = spec.replace(heads=task.heads(spec, settings))
        length = self.recipe.data.length
        if length is None and self._longest(start, settings) > LONGEST:
            length = LONGEST
        if length is not None:
            # Examples that are all shorter say nothing of what the model can read.
            length = min(length, spec.max_length or length)
            told = {**settings.tokenizer, "model_max_length": length}
            settings = dataclasses.replace(settings, tokenizer=told)
        module = build(spec, seed=self.recipe.seed, device=device)
        if not found.scratch:
            _take_weights(start.module, module)
        model = LanguageModel(
            spec,
            module,
            start.tokenizer,
            settings,
            own_source_tokenizer=start.own_source_tokenizer,
        )
        task.check(self.valid_examples, settings)
        if self.valid_examples:
            task.try_metrics(self.valid_examples[:1], settings)
        encoded = task.encode(model, self.train_examples)
        valid = task.encode(model, self.valid_examples) if self.valid_examples else None
        return model, encoded, valid

    def _longest(self, start: LanguageModel, settings: Settings) -> int:
        """Tokens of the longest example, of those held out too."""
        unlimited = dataclasses.replace(settings, tokenizer={})
        heads = self.task.heads(start.spec, settings)
        spec = start.spec.replace(heads=heads)
        probe = LanguageModel(
            spec,
            start.module,
            start.tokenizer,
            unlimited,
            own_source_tokenizer=start.own_source_tokenizer,
        )
        lengths = self.task.encode(probe, [*self.train_examples, *self.valid_examples]).lengths
        return int(lengths.max(initial=1))

    def _write_beginning(self) -> None:
        run, lm = self.run, self.lm
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_text(run.recipe, self.recipe.to_toml())
        run.write_json(run.spec, lm.spec.to_dict())
        lm.text_tokenizer.save(run.tokenizer)
        if lm.own_source_tokenizer is not None:
            lm.own_source_tokenizer.save(run.path / SOURCE_TOKENIZER)
        lm.settings.write(run.path)

    def _adapt(self) -> ParameterCounts:
        """Freeze or adapt the model as the recipe says."""
        section, module = self.recipe.adapter, self.lm.module
        if section.rank:
            if self.recipe.model.freeze != "none":
                raise RecipeError(
                    "adapter.rank freezes all but the adapter and the heads: leave model.freeze "
                    "out."
                )
            if self.recipe.train.average > 1:
                raise RecipeError(
                    "train.average is the mean of whole weights, which adapter.rank does not "
                    "train: leave one of them out."
                )
            return add_lora(module, self._lora, seed=self.recipe.seed)
        return freeze(module, self.recipe.model.freeze)

    @property
    def _lora(self) -> LoRA:
        section = self.recipe.adapter
        return LoRA(
            rank=section.rank,
            alpha=section.alpha,
            dropout=section.dropout,
            targets=section.targets,
        )

    def _feed(self, encoded: Examples, precision: torch.dtype, device: torch.device) -> ExampleFeed:
        batch = self.recipe.train.batch
        assert batch is not None
        longest = int(encoded.lengths.max(initial=1))
        rows = fitting_micro_batch(
            self.lm.spec, rows=batch, length=longest, precision=precision, device=device
        )
        return ExampleFeed(
            self._objective,
            encoded,
            seed=self.recipe.seed,
            examples_per_step=batch,
            micro_tokens=rows * longest,
        )

    @property
    def _objective(self) -> Objective:
        return self.task.objective(self.lm.spec, self.lm.settings, self.train_examples)

    def _table(self, seconds_left: Callable[[float], float]) -> TrainingTable:
        self.table = TrainingTable(
            self.line,
            unigram_loss=None,
            flops_per_token=0.0,
            peak_flops=None,
            seconds_left=seconds_left,
        )
        return self.table

    def _evaluate(self, state: TrainState, valid: Examples | None) -> Evaluation:
        """Losses and the task's metric; the best weights are kept beside the run's."""
        if valid is None:
            return Evaluation()
        self.lm.module.eval()
        looked_at = _spread(self.valid_examples, self.recipe.train.eval_examples)
        with self._autocast():
            losses = example_losses(self.lm.module, self._plain_objective, valid)
            measured = self.task.measure(self.lm, looked_at)
        self.table.metric, _ = measured.metrics.main
        if "metric" not in self.facts:
            terms = [name.removeprefix("valid_") for name in losses if name != "valid_loss"]
            self.facts |= {"metric": self.table.metric, "loss_terms": terms}
            self.run.write_json(self.run.facts, self.facts)
        found = {**measured.metrics.to_dict(), **measured.figures}
        figures = {**{f"valid_{name}": value for name, value in found.items()}, **losses}
        score = measured.score
        if math.isfinite(score) and (state.best is None or score > state.best):
            state.best, state.best_step, state.declines = score, state.step, 0
            save_tensors(self._best, self.lm.module.state_dict())
        else:
            state.declines += 1
        patience = self.recipe.train.patience
        return Evaluation(figures, enough=patience is not None and state.declines >= patience)

    @property
    def _best(self) -> Path:
        """Where the best weights so far are kept, an adapter's apart from its base's."""
        self.run.checkpoints.mkdir(exist_ok=True)
        return self.run.checkpoints / _BEST

    @property
    def _plain_objective(self) -> Objective:
        """The objective without smoothing, so that losses are nats."""
        objective = self._objective
        return ToldTokens() if isinstance(objective, ToldTokens) else objective

    def _autocast(self) -> torch.autocast:
        precision, device = self.plan.precision, self.plan.device
        return torch.autocast(device.type, precision, enabled=precision is not torch.float32)

    def _introduce(self, encoded: Examples, adapted: ParameterCounts) -> None:
        """Say what is about to be taught, on what, for how long, and note it for the report."""
        recipe, lm, say = self.recipe, self.lm, self.line.say
        self.facts: dict[str, Any] = {
            "task": recipe.task.kind,
            "num_parameters": lm.spec.num_parameters,
            "trained_parameters": adapted.trained,
            "train_examples": len(self.train_examples),
            "valid_examples": len(self.valid_examples),
            "examples_digest": examples_digest(self.train_examples, self.valid_examples),
            "train_tokens": encoded.num_tokens,
            "labels": list(lm.settings.labels),
            "vocab_size": lm.text_tokenizer.vocab_size,
            "tokenizer_kind": lm.text_tokenizer.kind,
            "device": hardware.describe_device(self.plan.device),
            "precision": "bf16" if self.plan.precision is torch.bfloat16 else "fp32",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "trivium": version("trivium"),
            "samples": [],
        }
        self.run.write_json(self.run.facts, self.facts)
        facts = self.facts
        labels = f", {len(facts['labels'])} labels" if facts["labels"] else ""
        say(
            f"examples   {facts['train_examples']:,} to learn from, {facts['valid_examples']:,} "
            f"held out, {facts['train_tokens']:,} tokens{labels}"
        )
        part = "" if not adapted.frozen else f", {adapted.trained:,} of them trained"
        say(f"model      {recipe.model.start}: {facts['num_parameters']:,} parameters{part}")
        budget = ", ".join(f"{value:g} {name}" for name, value in recipe.train.budget.items())
        say(
            f"training   {budget}, {recipe.train.batch} examples a step, learning rate "
            f"{recipe.optimizer.lr:.2g}, in {facts['precision']} on {facts['device']} "
            f"({facts['threads']} threads)"
        )

    def _finish(self, state: TrainState) -> None:
        """Take the best weights, measure them on all held-out examples, write everything."""
        module, say = self.lm.module, self.line.say
        if self._best.is_file():
            module.load_state_dict(load_tensors(self._best))
        if self.recipe.adapter.keep_apart and self.recipe.adapter.rank:
            save_adapter(
                self.run.path / "adapter", module, self._lora, base=self.recipe.model.start
            )
        weights = merged_state(module)
        measured = None
        if self.valid_examples:
            weights, measured = self._best_of(weights, state)
        save_tensors(self.run.weights, weights)
        say(f"done       {state.step:,} steps in {duration(state.seconds)}")
        if measured is not None:
            if state.best_step:
                say(f"best       at step {state.best_step:,}")
            write_measured(self.run.path, self.recipe.task.kind, self.lm.settings, measured)
            show_measured(measured, say)
        self.run.write_json(self.run.facts, self.facts)
        write_report(self.run.path)
        say(f"report     {self.run.report}")
        say(f"try it     {_example(self.recipe.task.kind, self.lm, self.run.path)}")

    def _best_of(
        self, weights: dict[str, torch.Tensor], state: TrainState
    ) -> tuple[dict[str, torch.Tensor], Measured]:
        """The best weights, or the mean of the last checkpoints' where that is better."""
        candidates = [weights]
        if self.recipe.train.average > 1 and not self.recipe.adapter.rank:
            candidates.append(average_of_last(self.run.checkpoints, self.recipe.train.average))
        plain = build(self.lm.spec, device=self.plan.device)
        final = LanguageModel(
            self.lm.spec,
            plain,
            self.lm.tokenizer,
            self.lm.settings,
            own_source_tokenizer=self.lm.own_source_tokenizer,
        )
        found: list[Measured] = []
        for tensors in candidates:
            plain.load_state_dict(tensors)
            self.line.update("evaluating on all held-out examples")
            with self._autocast():
                found.append(self.task.measure(final, self.valid_examples))
        if len(found) > 1:
            name, average = found[1].metrics.main
            self.line.say(
                f"average    of the last {self.recipe.train.average} checkpoints: {name} "
                f"{average:.4f}, of the best: {found[0].metrics.main[1]:.4f}"
            )
        place = max(range(len(found)), key=lambda number: found[number].score)
        return candidates[place], found[place]


def _spread(examples: list[Any], limit: int | None) -> list[Any]:
    """At most `limit` examples, evenly from all of them: files often stand in some order."""
    if limit is None or len(examples) <= limit:
        return examples
    return [examples[number * len(examples) // limit] for number in range(limit)]


def _take_weights(start: LanguageModule, model: LanguageModule) -> None:
    """Fill a model with the weights of another; what only one of them has stays as it is."""
    theirs, ours = start.state_dict(), model.state_dict()
    same = {n: w for n, w in theirs.items() if n in ours and ours[n].shape == w.shape}
    model.load_state_dict({**ours, **same})


def _resumed(run: RunFolder, changes: Sequence[str] | dict[str, Any]) -> FinetuneRecipe:
    if not run.recipe.is_file():
        raise RecipeError(f"{run.path}: there is no run to resume here (no recipe.toml).")
    before = load_finetune_recipe(run.recipe)
    after = load_finetune_recipe(before.model_dump(mode="json", exclude_none=True), changes)
    for name in _FIXED:
        if getattr(before, name) != getattr(after, name):
            raise RecipeError(
                f"a resumed run cannot change [{name}]: what was trained so far depends on it. "
                "Start a new run with another --out."
            )
    if before.train.batch != after.train.batch:
        raise RecipeError("a resumed run cannot change train.batch: its steps depend on it.")
    return after


def _example(kind: str, model: LanguageModel, path: Path) -> str:
    """A command that uses what was learned."""
    if kind == "qa":
        return f'trivium answer {path} "Who wrote it?" --context "Ada wrote it."'
    if kind == "lm":
        return f"trivium generate {path} $'User: How are you?\\nAssistant:'"
    if kind == "tagging":
        return f'trivium tag {path} "Ada Lovelace was born in London"'
    verb = "classify" if kind == "classification" else "translate"
    return f'trivium {verb} {path} "a text of yours"'
