"""Training of one run: the loop, its evaluations and checkpoints, and what is said and written."""

from __future__ import annotations

import math
import signal
import time
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from trivium.adapt import merged_state
from trivium.data.shards import TRAIN, VALIDATION
from trivium.errors import RecipeError
from trivium.files import sync, write_file, write_json
from trivium.interop import save_adapter, tensor_files
from trivium.interop.settings import FILES
from trivium.language_model import LanguageModel
from trivium.model_folder import SOURCE_TOKENIZER, save_model, write_model
from trivium.models import build, flops_per_token, num_parameters
from trivium.objectives import Metrics
from trivium.objectives.task_metrics import EVALUATION, PREDICTIONS, mixed_metrics, write_metrics
from trivium.plan.forecast import say_forecast
from trivium.report import read_run, summarize, write_report
from trivium.train import defaults, hardware
from trivium.train.checkpoint import average_weights, checkpoints
from trivium.train.distributed import (
    Parallel,
    copy_without_weights,
    gather_weights,
    parallelize_step,
)
from trivium.train.distributed_checkpoint import Checkpoints
from trivium.train.health import LossMonitor
from trivium.train.loader import Loader
from trivium.train.memory import fit_memory
from trivium.train.recipe import DataParallelism
from trivium.train.run_folder import RunFolder
from trivium.train.run_log import ProgressLine, RunLog, counted, short_duration
from trivium.train.trainer import Trainer, TrainState, TrainStep, handle_signals
from trivium.train.validation import validation_losses
from trivium.workflows.corpus import Corpus
from trivium.workflows.introduction import introduce, say_finished
from trivium.workflows.model_setup import ModelSetup
from trivium.workflows.streams import build_streams, source_shares


class TrainingRun:
    """One call of `run_training`, once it has data and model; the callbacks of its `Trainer`.

    Args:
        started: `time.monotonic` when the command began.
    """

    def __init__(
        self,
        run: RunFolder,
        line: ProgressLine,
        corpus: Corpus,
        setup: ModelSetup,
        device: torch.device,
        parallel: Parallel,
        started: float,
    ) -> None:
        self.run, self.line, self.corpus, self.setup = run, line, corpus, setup
        self.device, self.parallel, self.started = device, parallel, started
        self._metric_seconds = 0.0  # of one example in the last evaluation
        self.module, self.lm = setup.module, setup.lm
        num_examples = sum(len(source.train) for source in corpus.examples)
        self.recipe = defaults.complete(setup.recipe, self.lm.spec, num_examples=num_examples)
        self.objectives = self.recipe.objectives
        self.precision = hardware.choose_precision(self.recipe.train.precision, device)
        others = (run.path / name for name in (*FILES, SOURCE_TOKENIZER))
        self.checkpoints = Checkpoints(
            run.checkpoints,
            parallel,
            files=[run.spec, run.tokenizer, *others],
            keep=max(self.recipe.train.keep_checkpoints, self.recipe.train.average),
        )

    def train(self, *, resume: bool) -> None:
        """Train to the end of the budget, and write everything."""
        streams = build_streams(self.recipe, self.corpus, self.setup, TRAIN)
        self.held_out = build_streams(self.recipe, self.corpus, self.setup, VALIDATION)
        self.shares = source_shares(self.recipe, streams)
        memory = fit_memory(
            self.recipe,
            self.objectives[0].specs(self.lm.spec),
            self.setup.parameters,
            streams,
            self.parallel,
            precision=self.precision,
            device=self.device,
        )
        train = self.recipe.train.replace(micro_batch_tokens=memory.micro_batch_tokens)
        self.recipe = self.recipe.replace(train=train)
        if self.parallel.is_main:
            self._write_model_files()
        loader = Loader(
            streams,
            list(self.shares.values()),
            seed=self.recipe.seed,
            micro_batch_tokens=memory.micro_batch_tokens,
        )
        if train.compiles(self.device):
            self.module.compile_blocks()  # type: ignore[operator]
        self.train_step = TrainStep(self.module)
        parallel_step = self._parallelize(memory.data)
        self.optimizers = self.recipe.optimizer.build(self.module)
        before = self.run.read_facts()
        state = self._restore(before) if resume else TrainState()
        self.parallel.barrier()  # all have read run.json, which the first one writes now
        if self.parallel.is_main:
            self._begin_log(state, before)
        trainer = Trainer(
            self.recipe,
            parallel_step,
            loader,
            self.optimizers,
            callbacks=self,
            device=self.device,
            precision=self.precision,
            started=self.started,
            parallel=self.parallel,
        )
        if state.step == 0:
            facts = self.run.read_facts() if self.parallel.is_main else {}
            facts |= say_forecast(trainer, facts, self.line)
            if self.parallel.is_main:
                self.run.write_facts(facts)
        self.run.training = True
        if resume and trainer.progress(state) >= 1.0:
            say_finished(self.line, self.recipe, state)
        elif self.parallel.is_main and (self.log_book.metric or not self.corpus.examples):
            self.log_book.show_heading()  # the first row may take a while
        try:
            state = trainer.train(state)
        finally:
            self.checkpoints.wait()
            if self.parallel.is_main:
                self.log_book.close()
        self._gather()
        if self.parallel.is_main:
            self._finish(state)

    def _parallelize(self, data: DataParallelism) -> nn.Module:
        """The step that this process trains with; of a model that is sharded, `whole` is a copy."""
        self.whole = self.module
        if self.parallel.size > 1 and data == "fsdp":
            self.whole = copy_without_weights(self.module)
            self.lm.module = self.objectives[0].models(self.whole)[""]
        return parallelize_step(
            self.train_step,
            self.parallel,
            self.recipe.parallel.replace(data=data),
            precision=self.precision,
            device=self.device,
            has_unused=len(self.objectives) > 1,
        )

    def _gather(self) -> None:
        """Fill `whole` on the first process, where metrics are computed and the model is saved."""
        if self.whole is not self.module:
            gather_weights(self.module, self.whole, self.parallel)

    def _begin_log(self, state: TrainState, before: dict[str, Any]) -> None:
        """Write and say what is trained; `before` are the facts of the run so far."""
        if state.step == 0:
            write_file(self.run.metrics, "")
        else:
            self.run.rewind_metrics(state.step)
        facts = self._facts()
        facts |= {key: before[key] for key in ("metric", "higher_is_better") if key in before}
        if state.step:
            facts["resumed"] = [*dict.fromkeys([*before.get("resumed", []), state.step])]
        self.run.write_facts(facts)
        introduce(self.line, self.recipe, self.corpus, self.setup, facts, state)
        train, unigram = self.recipe.train, facts.get("unigram_loss")
        is_part = facts.get("eval_examples", 0) < facts.get("valid_examples", 0)
        self.log_book = RunLog(
            self.run,
            self.line,
            tensorboard=train.tensorboard,
            unigram_loss=unigram,
            flops_per_token=facts["flops_per_token"],
            peak_flops=facts["peak_flops"],
            eval_every=train.eval_every or 1,
            metric=facts.get("metric", ""),
            metric_note=f" on {facts['metric_examples']:,}" if is_part else "",
            monitor=None if unigram is None else LossMonitor(unigram, facts["objectives"]),
        )

    def _restore(self, before: dict[str, Any]) -> TrainState:
        """The state of the last good checkpoint; a new one where preparing was interrupted.

        `before` are the facts of the run so far.
        """
        if next(checkpoints(self.run.checkpoints), None) is None:
            return TrainState()
        known, digests = before.get("digests", {}), self.corpus.digests
        changed = [name for name, digest in digests.items() if known.get(name) != digest]
        if changed:
            raise RecipeError(
                f"changed since this run began: {', '.join(changed)}. An exact continuation needs "
                "what there was: restore it, or start a new run with another --out."
            )
        self.line.update("verifying the token shards")
        for source in self.corpus.texts:
            source.shards.verify(self.parallel.rank, self.parallel.size)
        state = self.checkpoints.restore(self.module, self.optimizers, self.line.warn)
        logged = max((record["step"] for record in self.run.read_metrics()), default=0)
        lost = f"; steps up to {logged:,} are trained again" if logged > state.step else ""
        self.line.say(f"resuming   after step {state.step:,} from {self.run.checkpoints}{lost}")
        machine = {k: v for k, v in self._machine().items() if before.get(k, v) != v}
        if machine:
            changes = ", ".join(f"{k} = {v} (it was {before[k]})" for k, v in machine.items())
            self.line.warn(
                f"resuming with {changes}: results will be as good, but not equal to the last bit."
            )
        return state

    def step(self, number: int, progress: float) -> None:
        """Show how far the run is."""
        if self.parallel.is_main:
            self.log_book.show_progress(number, progress)

    def log(self, record: dict[str, Any], progress: float) -> None:
        """Write a record of `metrics.jsonl` and show it."""
        if self.parallel.is_main:
            self.log_book.write(record, progress)

    def out_of_memory(self, step: int, micro_batch_tokens: int) -> None:
        """Write the smaller micro-batches to the recipe, for --resume, and say so."""
        train = self.recipe.train.replace(micro_batch_tokens=micro_batch_tokens)
        self.recipe = self.recipe.replace(train=train)
        write_file(self.run.recipe, self.recipe.to_toml())
        self.line.warn(
            f"out of GPU memory at step {step}: from now on micro-batches have "
            f"{micro_batch_tokens:,} tokens, also after --resume; this changes dropout and "
            "rounding, nothing else."
        )

    def evaluate(self, state: TrainState) -> tuple[dict[str, float], bool]:
        """Validation losses and, of labelled objectives, metrics, whose best weights are kept."""
        self.line.update("evaluating")
        record = validation_losses(
            self.train_step,
            self.held_out,
            self.shares,
            tokens=self.recipe.train.eval_tokens,
            precision=self.precision,
            device=self.device,
            parallel=self.parallel,
        )
        if not any(source.valid for source in self.corpus.examples):
            return record, False
        self._gather()
        if not self.parallel.is_main:
            return record, False
        metrics = self._metrics(defaults.eval_examples(self.recipe))
        for name, one in metrics.items():
            prefix = f"valid_{name}/" if name else "valid_"
            record = {prefix + key: value for key, value in one.values.items()} | record
        name, first = next(iter(metrics.items()))
        if not self.log_book.metric:
            self.log_book.metric = f"{name}/{first.main}" if name else first.main
            known = {"metric": self.log_book.metric, "higher_is_better": first.higher_is_better}
            self.run.write_facts(self.run.read_facts() | known)
        if math.isfinite(first.score) and (state.best is None or first.score > state.best):
            state.best, state.best_step, state.evals_since_best = first.score, state.step, 0
            self.run.checkpoints.mkdir(exist_ok=True)
            tensor_files.write_safetensors(self.run.best, self.lm.module.state_dict())
        else:
            state.evals_since_best += 1
        patience = self.recipe.train.patience
        return record, patience is not None and state.evals_since_best >= patience

    def save(self, state: TrainState) -> None:
        """Write a checkpoint."""
        self.line.update("saving")
        if self.parallel.is_main:
            sync(self.run.metrics)  # a checkpoint has all records before it
        self.checkpoints.save(self.module, self.optimizers, state)

    def _metrics(self, limit: int | None) -> dict[str, Metrics]:
        """Metrics on `limit` held-out examples of every labelled source, or all, by its name."""
        self.lm.module.eval()
        enabled = self.precision is not torch.float32
        sources = [source for source in self.corpus.examples if source.valid]
        examples = [source.held_out(limit) for source in sources]
        begin = time.monotonic()
        with torch.autocast(self.device.type, self.precision, enabled=enabled):
            metrics = {
                source.config.name: source.objective.metrics(self.lm, chosen)
                for source, chosen in zip(sources, examples)
            }
        self._metric_seconds = (time.monotonic() - begin) / max(1, sum(map(len, examples)))
        return metrics

    def _write_model_files(self) -> None:
        """Recipe, spec, tokenizers and settings; the weights follow at the end."""
        run, corpus = self.run, self.corpus
        write_file(run.recipe, self.recipe.to_toml())
        write_json(run.spec, self.lm.spec.to_dict())
        corpus.tokenizer.save(run.tokenizer)
        if corpus.source_tokenizer is not None:
            corpus.source_tokenizer.save(run.path / SOURCE_TOKENIZER)
        self.lm.settings.write(run.path)

    def _machine(self) -> dict[str, Any]:
        """What the last bits of a result depend on besides the recipe."""
        return {
            "device": hardware.describe_device(self.device),
            "precision": "bf16" if self.precision is torch.bfloat16 else "fp32",
            "threads": torch.get_num_threads(),
            "processes": self.parallel.size,
            "torch": torch.__version__,
        }

    def _facts(self) -> dict[str, Any]:
        """What is trained, on what and where, for `run.json` and the report."""
        spec, texts, examples = self.lm.spec, self.corpus.texts, self.corpus.examples
        specs = self.objectives[0].specs(spec)
        length = defaults.row_length(self.recipe)
        facts: dict[str, Any] = {
            "objectives": [objective.kind for objective in self.objectives],
            "sources": [source.config.name for source in self.corpus.sources],
            "num_parameters": sum(num_parameters(one) for one in specs),
            "trained_parameters": self.setup.parameters.trained,
            "vocab_size": self.corpus.tokenizer.vocab_size,
            "tokenizer_kind": self.corpus.tokenizer.kind,
            "unknown_shares": self.corpus.unknown_shares(
                generates_targets=spec.family == "encoder-decoder"
            ),
            "digests": self.corpus.digests,
            "recipe": self.recipe.to_tree(),
            **self._machine(),
            "default_lr": defaults.pretraining_rate(spec),
            "peak_flops": hardware.peak_flops(self.device, self.precision),
            "flops_per_token": sum(flops_per_token(one, length) for one in specs),  # type: ignore
            "trivium": version("trivium"),
            "preparation_seconds": round(time.monotonic() - self.started, 3),
            "samples": [],
            "finished": False,
        }
        if texts:
            count = self.corpus.count
            facts |= {
                "documents": count("documents"),
                "train_tokens": count("tokens", TRAIN),
                "valid_tokens": count("tokens", VALIDATION),
                "duplicates_dropped": count("duplicates"),
                "bytes_per_token": count("text_bytes") / max(1, count("tokens")),
                "unigram_loss": self.corpus.unigram_loss(list(self.shares.values())),
            }
        if self.corpus.source_tokenizer is not None:
            facts["source_vocab_size"] = self.corpus.source_tokenizer.vocab_size
        if examples:
            facts |= {
                "task": examples[0].objective.kind,
                "train_examples": sum(len(source.train) for source in examples),
                "valid_examples": self.corpus.num_held_out(None),
                "eval_examples": self.corpus.num_held_out(defaults.eval_examples(self.recipe)),
                "metric_examples": self.corpus.num_measured(defaults.eval_examples(self.recipe)),
                "labels": list(self.lm.settings.labels),
            }
        return facts

    def _finish(self, state: TrainState) -> None:
        """Choose the weights, evaluate them on all held-out examples, write everything."""
        say, run = self.line.say, self.run
        self.line.update("writing the model")
        for name, model in self.objectives[0].models(self.whole).items():
            if name:
                save_model(run.path / name, model, self.corpus.tokenizer, overwrite=True)
        for file in (EVALUATION, PREDICTIONS):  # of an earlier end of this run
            (run.path / file).unlink(missing_ok=True)
        begin = time.monotonic()
        metrics = self._choose_weights()
        took = time.monotonic() - begin
        end = {"finished": True, "evaluation_seconds": took if metrics else 0.0}
        run.write_facts(run.read_facts() | {"samples": self._samples(state.step)} | end)
        preparation = state.preparation_seconds or 0.0
        say(
            f"done       {counted(state.step, 'step')}, {counted(state.tokens, 'token')} in "
            f"{short_duration(state.seconds - preparation)}"
            + (f" after {short_duration(preparation)} of preparation" if preparation > 10 else "")
        )
        if metrics:
            if state.best_step:
                some = self.corpus.num_measured(defaults.eval_examples(self.recipe))
                by = f"{self.log_book.metric} on {some:,} held-out examples"
                say(f"best       at step {state.best_step:,}, by {by}")
            kinds = (s.objective.kind for s in self.corpus.examples if s.config.name in metrics)
            mixed = mixed_metrics(metrics)
            write_metrics(run.path, next(kinds), mixed)
            values = ", ".join(f"{key} {value:.4f}" for key, value in mixed.values.items())
            count = len(mixed.predictions)
            say(
                f"metrics    {values} (on {count:,} held-out examples, in {short_duration(took)} "
                "more)"
            )
            for note in mixed.notes:
                say(f"           ({note})")
        write_report(run.path)
        summary = summarize(read_run(run.path))
        if summary.stuck:
            self.line.warn(summary.verdict)
        say(f"report     {run.report}")

    def suggest(self) -> None:
        """Show a command that uses the model, for each kind of objective."""
        texts = {objective.kind: text for objective, text in self.corpus.held_out_texts()}
        first = {objective.kind: objective for objective in reversed(self.objectives)}
        run, known = str(self.run.path), reversed(first.items())
        commands = dict.fromkeys(one.try_it(run, self.lm, texts.get(k, "")) for k, one in known)
        for number, command in enumerate(commands):
            self.line.say(f"{'' if number else 'try it':<11}trivium {command}")

    def _choose_weights(self) -> dict[str, Metrics]:
        """Put the weights that the run keeps, an adapter merged, into a plain model; evaluate it.

        With labelled examples these are the weights of the best metric or, where that is better,
        the mean of the last `train.average` checkpoints (not of an adapter); else the last weights.
        """
        module, config = self.lm.module, self.recipe.adapter
        if self.run.best.is_file():
            module.load_state_dict(tensor_files.read_safetensors(self.run.best))
        if config.rank and config.save_separately:
            base = self.recipe.model.init_from
            save_adapter(self.run.path / "adapter", module, config.lora, base=base)
        if not self.corpus.examples and not config.rank:
            self._write_model()
            return {}
        candidates: list[dict[str, Tensor]] = [merged_state(module)]
        if self.recipe.train.average > 1 and not config.rank:
            candidates.append(average_weights(self.run.checkpoints, self.recipe.train.average))
        self.lm = LanguageModel(
            self.lm.spec,
            build(self.lm.spec, seed=0, device=self.device),
            self.corpus.tokenizer,
            self.lm.settings,
            source_tokenizer=self.corpus.source_tokenizer,
        )
        self.lm.module.load_state_dict(candidates[0])
        self._write_model()
        results: list[dict[str, Metrics]] = []
        try:
            with handle_signals(signal.default_int_handler):  # raises KeyboardInterrupt
                for tensors in candidates:
                    self.lm.module.load_state_dict(tensors)
                    self._announce_evaluation()
                    results.append(self._metrics(self.recipe.train.eval_examples))
        except KeyboardInterrupt:
            self.line.warn(
                f"the evaluation was stopped: the model is in {self.run.path}, without its metrics;"
                f" `trivium eval {self.run.path} FILE --limit 100` measures it on a file"
            )
        scores = [next((one.score for one in result.values()), 0.0) for result in results]
        best = max(range(len(scores)), key=scores.__getitem__, default=0)
        self.lm.module.load_state_dict(candidates[best])
        if best:
            self._write_model()
        return results[best] if results else {}

    def _announce_evaluation(self) -> None:
        """Show the evaluation at the end; say it where it is larger than those before."""
        limit = self.recipe.train.eval_examples
        count, every = self.corpus.num_held_out(limit), self.corpus.num_held_out(None)
        note = f"evaluating on {count:,} of {every:,} held-out examples"
        self.line.update(note)
        if count > self.corpus.num_held_out(defaults.eval_examples(self.recipe)):
            seconds = self._metric_seconds * count  # unknown where nothing was left to train
            note += f", about {short_duration(seconds)}" if seconds else ""
            self.line.say(
                f"{note}; Ctrl-C keeps the model without metrics, and --resume --set "
                "train.eval_examples=N takes fewer"
            )

    def _write_model(self) -> None:
        """The model as users load it."""
        tokenizers = self.corpus.tokenizer, self.corpus.source_tokenizer
        write_model(self.run.path, self.lm.module, *tokenizers, self.lm.settings)

    def _samples(self, step: int) -> list[dict[str, Any]]:
        """A few prompts from held-out documents with the model's output, for the report."""
        samples = []
        self.lm.module.eval()
        for objective, text in self.corpus.held_out_texts():
            sample = objective.sample(self.lm, text)
            if sample is not None:
                samples.append({"step": step, "prompt": sample[0], "output": sample[1]})
        return samples
