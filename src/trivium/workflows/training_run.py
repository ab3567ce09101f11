"""Training of one run: the loop, its evaluations and checkpoints, and what is said and written."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trivium.data.shards import TRAIN, VALIDATION
from trivium.errors import RecipeError
from trivium.files import sync, write_file, write_json
from trivium.interop import tensor_files
from trivium.interop.settings import FILES
from trivium.plan.forecast import say_forecast
from trivium.progress import ProgressLine
from trivium.train import defaults, hardware
from trivium.train.callback import Callback
from trivium.train.checkpoint import checkpoints
from trivium.train.distributed import (
    Parallel,
    copy_without_weights,
    gather_weights,
    parallelize_step,
)
from trivium.train.distributed_checkpoint import Checkpoints
from trivium.train.health import LossMonitor
from trivium.train.loader import Loader
from trivium.train.loss_meter import joined
from trivium.train.memory import fit_memory, resumed_micro_batch
from trivium.train.recipe import DataParallelism
from trivium.train.run_folder import RunFolder
from trivium.train.run_log import RunLog
from trivium.train.trainer import Trainer, TrainState, TrainStep, validation_losses
from trivium.workflows.corpus import Corpus
from trivium.workflows.finished_run import FinishedRun, HeldOutMetrics
from trivium.workflows.introduction import introduce, run_facts, say_finished
from trivium.workflows.model_setup import ModelSetup
from trivium.workflows.streams import build_streams, source_shares


@dataclass
class TrainingRun:
    """One call of `run_training`, once it has data and model; the callbacks of its `Trainer`.

    Args:
        started: `time.monotonic` when the command began.
    """

    run: RunFolder
    line: ProgressLine
    corpus: Corpus
    setup: ModelSetup
    device: torch.device
    parallel: Parallel
    started: float
    callbacks: Sequence[Callback]

    def __post_init__(self) -> None:
        run, corpus, setup = self.run, self.corpus, self.setup
        self.module, self.lm = setup.module, setup.lm
        num_examples = sum(source.num_train for source in corpus.examples)
        num_rows = sum(
            source.objective.num_rows(source.train, self.lm) for source in corpus.examples
        )
        self.recipe = defaults.complete(
            setup.recipe, self.lm.spec, num_examples=num_examples, num_rows=num_rows
        )
        self.objectives = self.recipe.objectives
        self.arithmetic = hardware.choose_arithmetic(
            self.recipe.train.precision, self.device, self.module, run.read_facts()
        )
        [slower] = self.parallel.all_reduce_max(self.arithmetic.precision is torch.float32)
        self.precision = torch.float32 if slower else torch.bfloat16
        torch.set_num_threads(self.arithmetic.threads)
        self.checkpoints = Checkpoints(
            run.checkpoints,
            self.parallel,
            files=[run.spec, run.tokenizer, run.source_tokenizer, *map(run.path.joinpath, FILES)],
            keep=max(self.recipe.train.keep_checkpoints, self.recipe.train.average),
        )
        streamed = self.recipe, corpus, setup
        self.train_streams = build_streams(*streamed, TRAIN, run.examples, self.parallel)
        self.validation_streams = build_streams(*streamed, VALIDATION, run.examples, self.parallel)
        corpus.free_examples()
        self.shares = source_shares(self.recipe, self.train_streams)
        self.held_out = HeldOutMetrics(corpus, self.recipe, self.precision)
        self.train_step = TrainStep(self.module)
        self.whole = self.module
        """The model with all of its weights; where they are divided, a copy that is filled."""

    def train(self, *, resume: bool) -> FinishedRun | None:
        """Train to the end of the budget, and write everything; None in all processes but one."""
        before = self.run.read_facts()
        memory = fit_memory(
            resumed_micro_batch(self.recipe, before, self.parallel) if resume else self.recipe,
            self.objectives[0].specs(self.lm.spec),
            self.setup.parameters,
            self.train_streams,
            self.parallel,
            precision=self.precision,
            device=self.device,
            state_size=self.recipe.optimizer.state_size(self.module),
        )
        self.micro_batch_tokens = memory.micro_batch_tokens
        if memory.idle:
            self.line.warn(memory.idle)
        loader = Loader(
            self.train_streams,
            list(self.shares.values()),
            seed=self.recipe.seed,
            micro_batch_tokens=memory.micro_batch_tokens,
            parallel=self.parallel,
        )
        if self.recipe.train.compiles(self.device):
            self.module.compile_blocks()  # type: ignore[operator]
        if self.recipe.train.metric and self.parallel.is_main:  # which now has the whole model
            self.held_out.check_metric(self.lm)
        if self.parallel.size == 1:
            self.held_out.cut(self.lm, before.get("eval_limit"))
        parallel_step = self._parallelize(memory.data)
        self.optimizers = self.recipe.optimizer.build(self.module, self.precision)
        state = self._restore(before) if resume else TrainState()
        self.parallel.barrier()  # all have read run.json, which the first one writes now
        if self.parallel.is_main:
            self._write_model_files()
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
        elif self.parallel.is_main and self.log_book.metric != "":
            self.log_book.show_heading()  # the first row may take a while
        try:
            state = trainer.train(state)
        finally:
            self.checkpoints.wait()
            if self.parallel.is_main:
                self.log_book.close()
        for optimizer in self.optimizers:
            optimizer.state.clear()
        self._gather(self.device)
        if not self.parallel.is_main:
            return None
        finished = FinishedRun(
            self.run, self.line, self.recipe, self.corpus, self.whole, self.lm, self.held_out
        )
        finished.write(state)
        return finished

    def _parallelize(self, data: DataParallelism) -> nn.Module:
        """The step that this process trains with."""
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

    def _gather(self, device: torch.device) -> None:
        """Fill `whole` on the first process, where metrics are computed and the model is saved.

        It goes to a GPU where that has space for it, and for another at the end of fine-tuning.
        """
        if self.whole is self.module:
            return
        gather_weights(self.module, self.whole, self.parallel)
        torch.cuda.empty_cache()
        size = sum(weight.nbytes for weight in self.whole.parameters())
        if self.parallel.is_main and 2 * size < hardware.free_memory(device):
            self.whole.to(device)

    def _begin_log(self, state: TrainState, before: dict[str, Any]) -> None:
        """Write and say what is trained; `before` are the facts of the run so far."""
        if state.step == 0:
            write_file(self.run.metrics, "")
        else:
            self.run.rewind_metrics(state.step)
        facts = run_facts(self.recipe, self.corpus, self.setup, self.shares, self.held_out)
        facts |= self._machine_facts()
        facts["gflops"] = dict(self.arithmetic.gflops)
        facts["peak_flops"] = hardware.peak_flops(self.device, self.precision)
        facts["preparation_seconds"] = round(time.monotonic() - self.started, 3)
        facts |= {
            key: before[key] for key in ("metric", "higher_is_better", "gflops") if key in before
        }
        if state.step:
            facts["resumed"] = [*dict.fromkeys([*before.get("resumed", []), state.step])]
        self.run.write_facts(facts)
        introduce(self.line, self.recipe, self.corpus, self.setup, facts, state)
        unigram = facts.get("unigram_loss")
        patience = max(objective.steps_to_context for objective in self.objectives)
        self.log_book = RunLog(
            self.run,
            self.line,
            self.recipe.train,
            facts,
            metric=facts.get("metric", "") if self.held_out.sources else None,
            monitor=None if unigram is None else LossMonitor(unigram, patience),
        )

    def _machine_facts(self) -> dict[str, Any]:
        """What the last bits of a result depend on besides the recipe."""
        return {
            "device": hardware.describe_device(self.device),
            "precision": "bf16" if self.precision is torch.bfloat16 else "fp32",
            "threads": torch.get_num_threads(),
            "processes": self.parallel.size,
            "micro_batch_tokens": self.micro_batch_tokens,
            "torch": torch.__version__,
        }

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
        verify = self.recipe.train.verify
        self.line.update("verifying the token shards")
        for source in self.corpus.texts if verify else ():
            source.shards.verify(self.parallel.rank, self.parallel.size)
        state = self.checkpoints.restore(
            self.module, self.optimizers, self.line.warn, verify=verify
        )
        logged = max((record["step"] for record in self.run.read_metrics()), default=0)
        lost = f"; steps up to {logged:,} are trained again" if logged > state.step else ""
        self.line.say(f"resuming   after step {state.step:,} from {self.run.checkpoints}{lost}")
        machine = self._machine_facts()
        changed = [name for name, value in machine.items() if before.get(name, value) != value]
        if changed:
            changes = ", ".join(f"{k} = {machine[k]} (it was {before[k]})" for k in changed)
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
        if not self.parallel.is_main:
            return
        self.log_book.write(record, progress)
        for callback in self.callbacks:
            if "train_loss" in record:
                callback.on_log(record)
            else:
                callback.on_evaluate(record, self.lm)

    def out_of_memory(self, step: int, micro_batch_tokens: int) -> None:
        """Note the smaller micro-batches, for --resume, and say so."""
        smaller = {"micro_batch_tokens": micro_batch_tokens}
        self.run.write_facts(self.run.read_facts() | smaller)
        self.line.warn(
            f"out of GPU memory at step {step}: from now on micro-batches have "
            f"{micro_batch_tokens:,} tokens, also after --resume; this changes dropout and "
            "rounding, nothing else."
        )

    def evaluate(self, trainer: Trainer, state: TrainState) -> tuple[dict[str, float], bool]:
        """Validation losses and, of labelled objectives, metrics, whose best weights are kept."""
        self.line.update("evaluating")
        record = validation_losses(trainer, self.validation_streams)
        if self.held_out.sources or self.callbacks:
            self._gather(self.device if self.held_out.sources else torch.device("cpu"))
        if not self.held_out.sources or not self.parallel.is_main:
            return record, False
        metrics = self.held_out.measure(self.lm, self.held_out.limit)
        for name, one in metrics.items():
            prefix = f"valid_{name}/" if name else "valid_"
            record = joined(record, {prefix + key: v for key, v in one.values.items()})
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
        if self.whole is not self.module:
            self.whole.cpu()  # training needs the memory of the GPU
        patience = self.recipe.train.patience
        return record, patience is not None and state.evals_since_best >= patience

    def save(self, state: TrainState) -> None:
        """Write a checkpoint."""
        self.line.update("saving")
        if self.parallel.is_main:
            sync(self.run.metrics)  # a checkpoint has all records before it
        self.checkpoints.save(self.module, self.optimizers, state)
        if self.callbacks:
            self.checkpoints.wait()
        for callback in self.callbacks if self.parallel.is_main else ():
            callback.on_save(self.run.checkpoints / f"step-{state.step:08}")

    def _write_model_files(self) -> None:
        """Recipe, spec, tokenizers and settings; the weights follow at the end."""
        run, corpus = self.run, self.corpus
        write_file(run.recipe, self.recipe.to_toml())
        write_json(run.spec, self.lm.spec.to_dict())
        corpus.tokenizer.save(run.tokenizer)
        if corpus.source_tokenizer is not None:
            corpus.source_tokenizer.save(run.source_tokenizer)
        self.lm.settings.write(run.path)
