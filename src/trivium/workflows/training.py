"""A whole run, pretraining and fine-tuning alike: data, model, training, and what is written."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from trivium.adapt import LoRA, ParameterCounts, add_lora, freeze, merged_state, save_adapter
from trivium.data.rows import Rows
from trivium.data.shards import TRAIN, VALIDATION, unigram_loss
from trivium.errors import RecipeError
from trivium.files import write_file, write_json
from trivium.interop.settings import FILES, Settings
from trivium.language_model import LanguageModel, load
from trivium.model_folder import SOURCE_TOKENIZER, save_model, write_model, write_weights
from trivium.models import flops_per_token, num_parameters
from trivium.objectives import LabelledObjective, Metrics, Objective
from trivium.objectives.task_metrics import mixed_metrics, write_metrics
from trivium.presets import presets
from trivium.report import write_report
from trivium.spec import AnySpec, Head
from trivium.text import Tokenizer
from trivium.text.vocabulary import Vocabulary
from trivium.train import defaults, hardware
from trivium.train.checkpoint import (
    average_weights,
    last_good_checkpoint,
    load_tensors,
    restore,
    save_checkpoint,
)
from trivium.train.loader import BatchStream, ExampleStream, Loader, RowStream, source_seed
from trivium.train.memory import fitting_tokens
from trivium.train.recipe import Changes, Recipe, build_recipe, load_recipe, read_recipe
from trivium.train.run_folder import RunFolder
from trivium.train.run_log import ProgressLine, RunLog, duration
from trivium.train.trainer import Budget, Trainer, TrainState
from trivium.train.validation import HeldOut, HeldOutExamples, HeldOutRows, validation_losses
from trivium.workflows.corpus import Corpus, ExampleSource, TextSource, load_corpus

# What a resumed run may not change: rows, noise and weights follow from it.
_FIXED = ("seed", "model", "tokenizer", "data", "objective", "mix", "adapter")
_SAMPLES = 4

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def pretrain(
    recipe: str | os.PathLike[str] | Recipe,
    *,
    data: Paths = (),
    out: str | os.PathLike[str],
    changes: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Train a model on raw text; everything it makes is in the run folder `out`.

    Args:
        recipe: a preset ("bert-small"), a shipped recipe ("textbook-bert"), a TOML file, a Recipe,
            or the folder of a model to continue from, local or Hugging Face's.
        data: files, folders or globs of text, or a folder of shards; they replace `data.paths`.
        changes: ["optimizer.lr=3e-4", ...] or a nested dict, applied to the recipe.
        resume: continue the run in `out` from its last good checkpoint; exactly, in that on a CPU
            metrics and weights are those of a run that was never interrupted.
        overwrite: replace a run that `out` holds.
        console: where progress is shown; standard error unless given.

    Raises:
        TriviumError: a recipe, text, tokenizer or checkpoint that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    if resume:
        chosen = _resumed_recipe(RunFolder(out), changes, recipe)
    else:
        chosen = load_recipe(recipe, changes)
        if data:
            if chosen.mix:
                raise RecipeError(
                    "this recipe names its sources in [[mix]]: leave --data out, or set mix."
                )
            chosen = chosen.replace(data=chosen.data.replace(paths=_path_list(data)))
    return run_training(chosen, out, resume=resume, overwrite=overwrite, console=console)


def finetune(
    task: str,
    *,
    model: str | os.PathLike[str] = "",
    data: Paths = (),
    validation: float | Paths | None = None,
    out: str | os.PathLike[str],
    changes: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Fine-tune a model on labelled examples; everything it makes is in the run folder `out`.

    Args:
        task: the kind of a labelled objective ("classification", "tagging", "qa", "translation",
            "text-to-text", "summarization", "chat"), or a recipe file.
        model: a run, a checkpoint, a Hugging Face folder or name, or a preset (new weights).
        data: labelled files; they replace `data.paths`.
        validation: a fraction of the examples, or files.
        changes: ["train.epochs=3", ...] or a nested dict, applied to the recipe.
        resume, overwrite, console: as of `pretrain`.

    Raises:
        TriviumError: examples, a model or a recipe that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    if resume:
        chosen = _resumed_recipe(RunFolder(out), changes)
    else:
        from_file = task.endswith(".toml")
        tree = read_recipe(task) if from_file else {"objective": {"kind": task}}
        table = tree.setdefault("data", {})
        if model:
            name = os.fspath(model)
            origin = "preset" if name in presets else "init_from"
            kept = {k: v for k, v in tree.get("model", {}).items() if k not in ("preset", "spec")}
            tree["model"] = {**kept, origin: name}
        if data:
            table["paths"] = list(_path_list(data))
        if validation is not None:
            fraction = isinstance(validation, float | int)
            table["validation"] = validation if fraction else list(_path_list(validation))
        if not tree.get("model"):
            raise RecipeError("which model to fine-tune? Give --model RUN, FOLDER or PRESET.")
        chosen = build_recipe(tree, changes, source=task if from_file else "recipe")
    return run_training(chosen, out, resume=resume, overwrite=overwrite, console=console)


def run_training(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Train as a recipe says; everything it makes is in the run folder `out`.

    Raises:
        TriviumError: data, a model or a checkpoint that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    started = time.monotonic()
    line = ProgressLine(console or Console(stderr=True))
    with line.running(), RunFolder(out).opened(resume=resume, overwrite=overwrite) as run:
        hardware.keep_freed_memory()
        device = hardware.choose_device(recipe.train.device)
        base = _load_base(recipe)
        spec = recipe.model.build_spec() if base is None else base.spec
        assert spec is not None
        for objective in recipe.objectives:
            if not objective.labelled:
                objective.heads(spec)  # an unsuitable model is refused before data is read
        run.path.mkdir(parents=True, exist_ok=True)
        write_file(run.recipe, recipe.to_toml())
        corpus = load_corpus(recipe, spec, base, run, line)
        job = TrainingRun(recipe, run, line, corpus, spec, base, device, started, resume=resume)
        job.train()
    return run


class TrainingRun:
    """One call of `run_training`, once its data is there; the watcher of its `Trainer`."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunFolder,
        line: ProgressLine,
        corpus: Corpus,
        spec: AnySpec,
        base: LanguageModel | None,
        device: torch.device,
        started: float,
        *,
        resume: bool,
    ) -> None:
        self.run, self.line, self.corpus = run, line, corpus
        self.device, self.started, self.resume = device, started, resume
        self.precision = hardware.choose_precision(recipe.train.precision, device)
        recipe = self._resolve_objectives(recipe, spec)
        self.objectives = recipe.objectives
        settings = base.settings if base is not None else Settings()
        self.vocabulary = self._vocabulary(settings)
        settings = self._settings(settings, spec)
        self.spec = self._final_spec(recipe, spec, settings, new=base is None)
        for objective in self.objectives:
            objective.check(self.spec, self.vocabulary)
        self.module = self.objectives[0].build(self.spec, seed=recipe.seed, device=device)
        self.lm = LanguageModel(
            self.spec,
            self.objectives[0].models(self.module)[""],
            corpus.tokenizer,
            self._limit_length(settings, recipe, base),
            source_tokenizer=corpus.source_tokenizer,
        )
        num_examples = sum(len(source.train) for source in corpus.examples)
        self.recipe = defaults.complete(recipe, self.spec, num_examples=num_examples)
        if base is not None and not recipe.model.new_weights:
            self._take_weights(base)
        self.adapted = self._adapt()

    def train(self) -> None:
        """Train to the end of the budget, and write everything."""
        streams, shares = self._streams()
        micro_batch_tokens = self.recipe.train.micro_batch_tokens or self._fitting_tokens(streams)
        train = self.recipe.train.replace(micro_batch_tokens=micro_batch_tokens)
        self.recipe = recipe = self.recipe.replace(train=train)
        write_file(self.run.recipe, recipe.to_toml())
        self._write_model_files()
        loader = Loader(streams, shares, seed=recipe.seed, micro_batch_tokens=micro_batch_tokens)
        self.optimizers = recipe.optimizer.build(self.module)
        self.held_out = self._held_out(shares)
        if train.compile or (train.compile is None and self.device.type == "cuda"):
            self.module.compile_blocks()  # type: ignore[operator]
        state = self._restore() if self.resume else TrainState()
        if state.step == 0:
            self.run.metrics.write_text("", encoding="utf-8")
        self._introduce(loader, shares)
        assert train.eval_every is not None
        assert train.save_every is not None
        trainer = Trainer(
            model=self.module,
            loader=loader,
            optimizers=self.optimizers,
            schedule=recipe.schedule,
            budget=self._budget(loader),
            watcher=self,
            seed=recipe.seed,
            device=self.device,
            precision=self.precision,
            clip=train.clip,
            log_every=train.log_every,
            eval_every=train.eval_every,
            save_every=train.save_every,
            started=self.started,
        )
        self.run.training = True
        try:
            state = trainer.train(state)
        finally:
            self.log_book.close()
        self._finish(state)

    # -- what a run is made of ---------------------------------------------------------------------

    def _resolve_objectives(self, recipe: Recipe, spec: AnySpec) -> Recipe:
        """The recipe with keys of labelled objectives that follow from their examples."""
        resolved: dict[str, Objective] = {}
        for source in self.corpus.examples:
            source.objective = source.objective.resolve(spec, source.train)
            resolved[source.config.name] = source.objective
        if not recipe.mix:
            return recipe.replace(objective=resolved.get("", recipe.objective))
        mix = tuple(
            source.replace(objective=resolved.get(source.name, source.objective))
            for source in recipe.mix
        )
        return recipe.replace(mix=mix)

    def _vocabulary(self, settings: Settings) -> Vocabulary:
        """The tokenizer's facts, with the decoder's start of a model that has one."""
        start = next(iter(settings.decoder_start), None)
        return dataclasses.replace(self.corpus.tokenizer.vocabulary, decoder_start_id=start)

    def _settings(self, settings: Settings, spec: AnySpec) -> Settings:
        """How the model generates, and the labels and options of its tasks."""
        if spec.family == "encoder-decoder":
            settings = _with_generation_ids(settings, self.objectives, self.vocabulary)
            self.vocabulary = self._vocabulary(settings)
        for source in self.corpus.examples:
            settings = source.objective.settings(settings, source.train)
        return settings

    def _final_spec(
        self, recipe: Recipe, spec: AnySpec, settings: Settings, *, new: bool
    ) -> AnySpec:
        """The spec with its vocabulary, the heads of all objectives, and this run's dropout."""
        heads: dict[str, Head] = {}
        for objective in self.objectives:
            heads |= {head.kind: head for head in objective.heads(spec, settings.labels)}
        known = [head.kind for head in spec.heads]
        ordered = sorted(heads, key=lambda kind: known.index(kind) if kind in known else len(known))
        changes: dict[str, Any] = {"heads": tuple(heads[kind] for kind in ordered)}
        if new:
            changes["vocab_size"] = _table_rows(self.corpus.tokenizer)
            if self.corpus.source_tokenizer is not None:
                changes["source_vocab_size"] = _table_rows(self.corpus.source_tokenizer)
        return spec.replace(**changes).with_dropout(defaults.dropout(recipe))

    def _limit_length(
        self, settings: Settings, recipe: Recipe, base: LanguageModel | None
    ) -> Settings:
        """Settings with the longest input that labelled examples are encoded with."""
        if not self.corpus.examples:
            return settings
        length = recipe.data.length
        if length is None:
            length = self._longest_example(settings)
        if length is None:
            return settings
        limit = getattr(self.spec, "max_length", None)
        options = {**settings.tokenizer, "model_max_length": min(length, limit or length)}
        return dataclasses.replace(settings, tokenizer=options)

    def _longest_example(self, settings: Settings) -> int | None:
        """512 where some example has more tokens; None where none has."""
        texts = (text for source in self.corpus.examples for text in _all_texts(source))
        for tokens in self.corpus.tokenizer.encode_ids_batch(list(texts)):
            if len(tokens) + 3 > defaults.LONGEST_EXAMPLE:
                return defaults.LONGEST_EXAMPLE
        return None

    def _take_weights(self, base: LanguageModel) -> None:
        """Start from the weights of another model; heads that it has not stay new.

        Raises RecipeError where a weight is missing or has another shape.
        """
        models = self.objectives[0].models(self.module)
        _copy_weights(base, models[""])
        for name, model in models.items():
            beside = Path(str(self.recipe.model.init_from)) / name
            if name and beside.is_dir():
                _copy_weights(load(beside, device="cpu"), model)
        self.line.say(f"weights    those of {self.recipe.model.init_from}")

    def _adapt(self) -> ParameterCounts:
        """Freeze or adapt the model as the recipe says."""
        if self.recipe.adapter.rank:
            return add_lora(self.lm.module, self._lora, seed=self.recipe.seed)
        return freeze(self.lm.module, self.recipe.model.freeze)

    @property
    def _lora(self) -> LoRA:
        config = self.recipe.adapter
        return LoRA(
            rank=config.rank, alpha=config.alpha, dropout=config.dropout, targets=config.targets
        )

    def _streams(self) -> tuple[list[BatchStream], list[float]]:
        """The batches of every source, and the sources' shares of the steps."""
        recipe, train = self.recipe, self.recipe.train
        length = defaults.row_length(recipe)
        assert train.batch_tokens is not None
        streams: list[BatchStream] = []
        for number, (source, objective) in enumerate(
            zip(self.corpus.sources, self.objectives, strict=True)
        ):
            common = {
                "name": source.config.name,
                "objective": objective,
                "vocabulary": self.vocabulary,
                "seed": source_seed(recipe.seed, number),
            }
            if isinstance(source, TextSource):
                rows = max(1, train.batch_tokens // length)
                separate = recipe.data.separate_documents
                streams.append(
                    RowStream(
                        **common,
                        rows=self._rows(source, TRAIN),
                        rows_per_step=rows,
                        separate_documents=separate,
                    )
                )
            else:
                assert train.batch_examples is not None
                assert isinstance(objective, LabelledObjective)
                encoded = objective.encode(source.train, self.lm)
                streams.append(
                    ExampleStream(**common, examples=encoded, rows_per_step=train.batch_examples)
                )
        weights = [source.config.weight for source in self.corpus.sources]
        exponent = 1.0 / recipe.data.temperature
        sizes = [stream.num_rows**exponent for stream in streams]
        shares = [size if weight is None else weight for size, weight in zip(sizes, weights)]
        return streams, [share / sum(shares) for share in shares]

    def _rows(self, source: TextSource, split: str) -> Rows:
        data = self.recipe.data
        pad = self.vocabulary.pad_id
        return Rows(
            source.shards.split(split),
            defaults.row_length(self.recipe),
            data.packing,
            pad_id=self.vocabulary.eos_id or 0 if pad is None else pad,
        )

    def _fitting_tokens(self, streams: Sequence[BatchStream]) -> int:
        lengths = [
            int(stream.examples.lengths.max(initial=1))
            for stream in streams
            if isinstance(stream, ExampleStream)
        ]
        if self.corpus.texts:
            lengths.append(defaults.row_length(self.recipe))
        return fitting_tokens(
            self.objectives[0].specs(self.spec),
            length=max(lengths),
            precision=self.precision,
            device=self.device,
        )

    def _held_out(self, shares: Sequence[float]) -> list[HeldOut]:
        held_out: list[HeldOut] = []
        for source, objective, share in zip(
            self.corpus.sources, self.objectives, shares, strict=True
        ):
            common = {
                "name": source.config.name,
                "objective": objective,
                "share": share,
                "vocabulary": self.vocabulary,
            }
            if isinstance(source, ExampleSource):
                if source.valid:
                    assert isinstance(objective, LabelledObjective)
                    encoded = objective.encode(source.valid, self.lm)
                    held_out.append(HeldOutExamples(**common, examples=encoded))
            elif source.has_validation:
                held_out.append(
                    HeldOutRows(
                        **common,
                        rows=self._rows(source, VALIDATION),
                        tokens=max(1, round(share * self.recipe.train.eval_tokens)),
                        separate_documents=self.recipe.data.separate_documents,
                    )
                )
        return held_out

    def _budget(self, loader: Loader) -> Budget:
        train = self.recipe.train
        assert train.budget is not None
        name, size = train.budget
        match name:
            case "steps":
                return Budget(steps=int(size))
            case "minutes":
                return Budget(seconds=60.0 * size)
            case "tokens":
                assert train.batch_tokens is not None
                return Budget(steps=max(1, math.ceil(size / train.batch_tokens)))
            case "epochs":
                return Budget(steps=max(1, round(size * loader.steps_per_epoch())))
            case _:
                raise AssertionError(name)

    def _restore(self) -> TrainState:
        """The state of the last good checkpoint; a new one where preparing was interrupted."""
        if not self.run.read_metrics() and not self.run.checkpoints.is_dir():
            return TrainState()
        digest = self.run.read_facts().get("examples_digest")
        if self.corpus.examples and digest != self.corpus.examples_digest:
            raise RecipeError(
                "the labelled files have changed since this run began, and an exact continuation "
                "needs the same ones: restore them, or start a new run with another --out."
            )
        checkpoint = last_good_checkpoint(self.run.checkpoints, self.warn)
        state = restore(checkpoint, self.module, self.optimizers)
        self.run.rewind_metrics(state.step)
        self.line.say(f"resuming   after step {state.step:,} from {checkpoint}")
        threads = self.run.read_facts().get("threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            self.warn(
                f"this run began on {threads} threads and resumes on {torch.get_num_threads()}: "
                "results will be as good, but not equal to the last bit."
            )
        return state

    # -- what the trainer calls --------------------------------------------------------------------

    def log(self, record: dict[str, Any], progress: float) -> None:
        """Write a record of `metrics.jsonl` and show it."""
        self.log_book.write(record, progress)

    def warn(self, message: str) -> None:
        """Show a warning."""
        self.line.say(f"warning    {message}", style="yellow")

    def evaluate(self, state: TrainState) -> tuple[dict[str, float], bool]:
        """Validation losses and, of labelled objectives, metrics; keeps the best weights."""
        self.line.update("evaluating")
        figures = validation_losses(self.module, self.held_out, self.precision)
        metrics = self._metrics(self.lm, self.recipe.train.eval_examples)
        if not metrics:
            return figures, False
        for name, one in metrics.items():
            prefix = f"valid_{name}_" if name else "valid_"
            values = {prefix + key: value for key, value in one.values.items()}
            figures = {**values, **figures}
        name, first = next(iter(metrics.items()))
        self.log_book.metric = f"{name}_{first.main}" if name else first.main
        if math.isfinite(first.score) and (state.best is None or first.score > state.best):
            state.best, state.best_step, state.evals_since_best = first.score, state.step, 0
            self.run.checkpoints.mkdir(exist_ok=True)
            write_weights(self.run.best, self.lm.module)
        else:
            state.evals_since_best += 1
        patience = self.recipe.train.patience
        return figures, patience is not None and state.evals_since_best >= patience

    def save(self, state: TrainState) -> None:
        """Write a checkpoint."""
        self.line.update("saving")
        names = (*FILES, SOURCE_TOKENIZER)
        save_checkpoint(
            self.run.checkpoints,
            self.module,
            self.optimizers,
            state,
            files=[self.run.spec, self.run.tokenizer, *(self.run.path / name for name in names)],
            keep=max(self.recipe.train.keep_checkpoints, self.recipe.train.average),
        )

    # -- what is said and written ------------------------------------------------------------------

    def _metrics(self, lm: LanguageModel, limit: int | None = None) -> dict[str, Metrics]:
        """Metrics on the held-out examples of every labelled source, by its name."""
        lm.module.eval()
        enabled = self.precision is not torch.float32
        with torch.autocast(self.device.type, self.precision, enabled=enabled):
            return {
                source.config.name: source.objective.metrics(lm, _spread(source.valid, limit))
                for source in self.corpus.examples
                if source.valid
            }

    def _write_model_files(self) -> None:
        """Spec, tokenizers and settings; the weights follow at the end."""
        run, corpus = self.run, self.corpus
        write_json(run.spec, self.lm.spec.to_dict())
        corpus.tokenizer.save(run.tokenizer)
        if corpus.source_tokenizer is not None:
            corpus.source_tokenizer.save(run.path / SOURCE_TOKENIZER)
        self.lm.settings.write(run.path)

    def _introduce(self, loader: Loader, shares: Sequence[float]) -> None:
        """Say what is about to be trained, on what, for how long, and note it for the report."""
        recipe, spec, tokenizer = self.recipe, self.spec, self.corpus.tokenizer
        texts, examples = self.corpus.texts, self.corpus.examples
        unigram = self._unigram_loss(shares)
        specs = self.objectives[0].specs(spec)
        length = defaults.row_length(recipe)
        facts: dict[str, Any] = {
            "objectives": [objective.kind for objective in self.objectives],
            "sources": [source.config.name for source in self.corpus.sources],
            "loss_terms": list(loader.step(0).counts),
            "num_parameters": sum(num_parameters(one) for one in specs),
            "trained_parameters": self.adapted.trained,
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_kind": tokenizer.kind,
            "device": hardware.describe_device(self.device),
            "precision": "bf16" if self.precision is torch.bfloat16 else "fp32",
            "threads": torch.get_num_threads(),
            "peak_flops": hardware.peak_flops(self.device, self.precision),
            "flops_per_token": sum(flops_per_token(one, length) for one in specs),
            "torch": torch.__version__,
            "trivium": version("trivium"),
            "preparation_seconds": round(time.monotonic() - self.started, 3),
            "samples": [],
        }
        say = self.line.say
        if texts:
            counts = {
                "documents": sum(source.count("documents") for source in texts),
                "train_tokens": sum(source.count("tokens", TRAIN) for source in texts),
                "valid_tokens": sum(source.count("tokens", VALIDATION) for source in texts),
                "duplicates_dropped": sum(source.count("duplicates") for source in texts),
            }
            text_bytes = sum(source.count("text_bytes") for source in texts)
            tokens = counts["train_tokens"] + counts["valid_tokens"]
            facts |= counts | {"bytes_per_token": text_bytes / max(1, tokens)}
            facts["unigram_loss"] = unigram
            say(
                f"text       {counts['documents']:,} documents, {counts['train_tokens']:,} tokens "
                f"to train on, {counts['valid_tokens']:,} held out, "
                f"{counts['duplicates_dropped']:,} duplicate documents dropped"
            )
        if examples:
            facts |= {
                "task": examples[0].objective.kind,
                "train_examples": sum(len(source.train) for source in examples),
                "valid_examples": sum(len(source.valid) for source in examples),
                "examples_digest": self.corpus.examples_digest,
                "labels": list(self.lm.settings.labels),
            }
            labels = f", {len(facts['labels'])} labels" if facts["labels"] else ""
            say(
                f"examples   {facts['train_examples']:,} to train on, "
                f"{facts['valid_examples']:,} held out{labels}"
            )
        self.run.write_facts(facts)
        self.log_book = RunLog(
            self.run,
            self.line,
            tensorboard=recipe.train.tensorboard,
            unigram_loss=unigram,
            flops_per_token=facts["flops_per_token"],
            peak_flops=facts["peak_flops"],
        )
        trained = f", {self.adapted.trained:,} of them trained" if self.adapted.frozen else ""
        name = recipe.model.preset or recipe.model.init_from or spec.family
        say(
            f"model      {name}: {facts['num_parameters']:,} parameters{trained}, "
            f"{tokenizer.kind} vocabulary of {tokenizer.vocab_size:,}"
        )
        assert recipe.train.budget is not None
        budget, size = recipe.train.budget
        batch = f"{recipe.train.batch_tokens:,} tokens" if texts else ""
        if examples:
            batch += f"{' or ' if batch else ''}{recipe.train.batch_examples:,} examples"
        say(
            f"training   {size:g} {budget}, {batch} per step, learning rate "
            f"{recipe.optimizer.lr:.2g}, {facts['precision']} on {facts['device']} "
            f"({facts['threads']} threads)"
        )
        if facts["preparation_seconds"] > 10:
            say(
                f"prepared   in {duration(facts['preparation_seconds'])}; a budget in minutes "
                "starts now"
            )
        if unigram is not None:
            say(f"baseline   token frequencies alone give a loss of {unigram:.3f} nats per token")

    def _unigram_loss(self, shares: Sequence[float]) -> float | None:
        """The unigram baseline in the units of `valid_loss`, None where there is none."""
        offset = 0.0
        for share, objective in zip(shares, self.objectives, strict=True):
            if objective.unigram_offset is None:
                return None
            offset += share * objective.unigram_offset
        return offset + unigram_loss([source.shards for source in self.corpus.texts], shares)

    def _finish(self, state: TrainState) -> None:
        """Choose the weights, evaluate them on all held-out examples, write everything."""
        say, run = self.line.say, self.run
        models = self.objectives[0].models(self.module)
        for name, model in models.items():
            if name:
                tokenizer = self.corpus.tokenizer
                save_model(run.path / name, model, tokenizer, overwrite=True)
        metrics = self._choose_weights()
        write_model(
            run.path,
            self.lm.module,
            self.corpus.tokenizer,
            self.corpus.source_tokenizer,
            self.lm.settings,
        )
        facts = run.read_facts()
        facts["samples"] = self._samples(state.step)
        run.write_facts(facts)
        say(
            f"done       {state.step:,} steps, {state.tokens:,} tokens in {duration(state.seconds)}"
        )
        self._warn_if_nothing_learned(facts)
        if metrics:
            if state.best_step:
                say(f"best       at step {state.best_step:,}")
            kinds = (s.objective.kind for s in self.corpus.examples if s.config.name in metrics)
            mixed = mixed_metrics(metrics)
            write_metrics(run.path, next(kinds), mixed)
            values = ", ".join(f"{key} {value:.4f}" for key, value in mixed.values.items())
            say(f"metrics    {values}")
        write_report(run.path)
        say(f"report     {run.report}")
        say(f"try it     trivium {self.objectives[0].try_it(str(run.path), self.lm)}")

    def _choose_weights(self) -> dict[str, Metrics]:
        """Put the best weights, an adapter merged, into a plain model, and evaluate it.

        With `train.average` the mean of the last checkpoints is tried too.
        """
        module, config = self.lm.module, self.recipe.adapter
        if self.run.best.is_file():
            module.load_state_dict(load_tensors(self.run.best))
        if config.rank and config.save_separately:
            base = self.recipe.model.init_from
            save_adapter(self.run.path / "adapter", module, self._lora, base=base)
        if not self.corpus.examples and not config.rank:
            return {}
        candidates: list[dict[str, Tensor]] = [merged_state(module)]
        if self.recipe.train.average > 1 and not config.rank:
            candidates.append(average_weights(self.run.checkpoints, self.recipe.train.average))
        plain = LanguageModel(
            self.spec,
            self.objectives[0].build(self.spec, seed=0, device=self.device),  # type: ignore
            self.corpus.tokenizer,
            self.lm.settings,
            source_tokenizer=self.corpus.source_tokenizer,
        )
        self.lm = plain
        results: list[dict[str, Metrics]] = []
        for tensors in candidates:
            plain.module.load_state_dict(tensors)
            self.line.update("evaluating on all held-out examples")
            results.append(self._metrics(plain))
        scores = [next((one.score for one in result.values()), 0.0) for result in results]
        best = max(range(len(scores)), key=scores.__getitem__)
        plain.module.load_state_dict(candidates[best])
        return results[best]

    def _samples(self, step: int) -> list[dict[str, Any]]:
        """A few prompts from held-out documents with the model's output, for the report."""
        samples = []
        self.lm.module.eval()
        for source, objective in zip(self.corpus.sources, self.objectives, strict=True):
            if not isinstance(source, TextSource):
                continue
            split = source.shards.split(VALIDATION if source.has_validation else TRAIN)
            for number in range(min(_SAMPLES, split.num_documents)):
                text = self.corpus.tokenizer.decode(split.document(number)[:100].tolist())
                sample = objective.sample(self.lm, text.strip())
                if sample is not None:
                    samples.append({"step": step, "prompt": sample[0], "output": sample[1]})
        return samples

    def _warn_if_nothing_learned(self, facts: dict[str, Any]) -> None:
        losses = [r["valid_loss"] for r in self.run.read_metrics() if "valid_loss" in r]
        unigram = facts.get("unigram_loss")
        if losses and unigram is not None and losses[-1] >= unigram:
            self.warn(
                f"the validation loss, {losses[-1]:.3f}, is not below that of token frequencies "
                f"alone, {unigram:.3f}: train longer, or on more text."
            )


def _load_base(recipe: Recipe) -> LanguageModel | None:
    """The model that training starts from; None for new weights of a preset or a spec."""
    if recipe.model.init_from is None:
        return None
    return load(recipe.model.init_from, device="cpu")


def _resumed_recipe(
    run: RunFolder, changes: Changes, name: str | os.PathLike[str] | Recipe = ""
) -> Recipe:
    """The recipe of a run with changes, which may not touch what the run depends on."""
    if not run.recipe.is_file():
        raise RecipeError(f"{run.path}: there is no run to resume here (no recipe.toml).")
    before = build_recipe(read_recipe(run.recipe))
    if isinstance(name, str) and name in presets and name != before.model.preset:
        raise RecipeError(
            f"{run.path} is a run of {before.model.preset or before.model.init_from}, not of "
            f"{name}: leave the preset out to resume it, or choose another --out."
        )
    after = build_recipe(before.to_tree(), changes)
    for key in _FIXED:
        if getattr(before, key) != getattr(after, key):
            raise RecipeError(
                f"a resumed run cannot change [{key}]: what was trained so far depends on it. "
                "Start a new run with another --out."
            )
    for key in ("batch_tokens", "batch_examples"):
        if getattr(before.train, key) != getattr(after.train, key):
            raise RecipeError(f"a resumed run cannot change train.{key}: its order depends on it.")
    return after


def _with_generation_ids(
    settings: Settings, objectives: Sequence[Objective], vocabulary: Vocabulary
) -> Settings:
    """Settings with the ids an encoder-decoder generates with: first, last, and padding."""
    starts = [objective.decoder_start(vocabulary) for objective in objectives]
    default = vocabulary.pad_id if vocabulary.bos_id is None else vocabulary.bos_id
    start = next((one for one in starts if one is not None), default)
    ids = {
        "decoder_start_token_id": start,
        "eos_token_id": vocabulary.end_id,
        "pad_token_id": vocabulary.pad_id,
    }
    missing = [name for name, index in ids.items() if index is None and name not in settings.config]
    if missing and not settings.generation:
        raise RecipeError(
            f"this tokenizer has no {missing[0].removesuffix('_id')}: use one with <pad>, </s> "
            "and <s>."
        )
    return dataclasses.replace(
        settings, generation={**ids, **settings.generation}, config={**ids, **settings.config}
    )


def _copy_weights(base: LanguageModel, model: Any) -> None:
    """Fill a model with the weights of another one; only heads the other has not stay new.

    Raises RecipeError where a weight is missing or has another shape.
    """
    theirs, ours = base.module.state_dict(), model.state_dict()
    kept = {head.kind: head for head in base.spec.heads}
    new = [head.kind for head in model.spec.heads if kept.get(head.kind) != head]
    taken = {}
    for name, weight in ours.items():
        if name.startswith(tuple(f"heads.{kind}." for kind in new)):
            continue
        if name not in theirs or theirs[name].shape != weight.shape:
            raise RecipeError(
                f"the model to start from has no {name} of shape {list(weight.shape)}: it is built "
                "differently, so its weights cannot be used."
            )
        taken[name] = theirs[name]
    model.load_state_dict(taken, strict=False)


def _table_rows(tokenizer: Tokenizer) -> int:
    """Rows of a table of token vectors: a multiple of 64."""
    return math.ceil(tokenizer.vocab_size / 64) * 64


def _all_texts(source: ExampleSource) -> list[str]:
    return [*source.objective.texts(source.train), *source.objective.texts(source.valid)]


def _spread(examples: list[Any], limit: int | None) -> list[Any]:
    """At most `limit` examples, evenly from all of them: files are often sorted."""
    if limit is None or len(examples) <= limit:
        return examples
    return [examples[number * len(examples) // limit] for number in range(limit)]


def _path_list(paths: Paths) -> tuple[str, ...]:
    several = (paths,) if isinstance(paths, str | os.PathLike) else paths
    return tuple(os.fspath(path) for path in several)
