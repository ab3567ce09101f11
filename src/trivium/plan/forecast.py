"""Forecasts how long a run takes on this machine, by timing a part of a training step.

Timing matmuls alone would not be accurate, because small models on a CPU spend as much time on
other operations. Therefore a forward and backward pass of the model is timed, followed by an
optimizer step. The learning rate is 0 in this step, so that no weight changes. The optimizer state
is deleted afterwards.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trivium.adapt.quantize import quantize_base
from trivium.data.documents import ReadOptions, estimate_text_bytes, read_documents
from trivium.data.rows import Rows
from trivium.errors import RecipeError
from trivium.messages import english, translate_english, translated
from trivium.models.base_model import Spec
from trivium.presets.published import published_recipes
from trivium.progress import ProgressLine, format_duration, labelled
from trivium.text import Tokenizer, TokenizerConfig
from trivium.text.vocabulary import Vocabulary
from trivium.train import defaults, hardware
from trivium.train.carried_state import create_carried_state
from trivium.train.data_config import TokenizerFile
from trivium.train.distributed import SINGLE_PROCESS
from trivium.train.loader import BatchStream, GlobalBatch, Loader
from trivium.train.memory import MemoryUse, fit_memory
from trivium.train.optimizers import set_learning_rate
from trivium.train.recipe import Recipe
from trivium.train.recipe_layers import has_published_budget
from trivium.train.recipe_loading import open_base_model
from trivium.train.trainer import Trainer, TrainStep, forward_backward

# On a CPU, the number of timed rows is doubled until timing takes this many seconds.
_MIN_TIMED_SECONDS = 1.0
# Limits for the forecast: minimum seconds of a run (at the device's peak FLOPS) to print one,
# days above which it warns, and steps below which it warns for a budget in minutes.
_MIN_RUN_SECONDS, _MANY_DAYS, _FEW_STEPS = 20.0, 2.0, 100
_DAY = 86_400.0


@dataclass(frozen=True)
class Forecast:
    """The predicted speed, duration and memory of a run on this machine.

    Args:
        tokens_per_second: the training throughput, not counting the time of evaluations and
            checkpoints.
        tokens: the number of training tokens of the run.
        steps: the number of steps of the run.
        micro_batch_tokens: the number of tokens per forward pass.
        memory_bytes: the predicted peak memory of all tensors of the run.
        free_bytes: the memory that is currently free.
        minutes: the budget in minutes; None for other budgets.
    """

    tokens_per_second: float
    tokens: float
    steps: float
    micro_batch_tokens: int
    memory_bytes: float
    free_bytes: float
    minutes: float | None = None

    @property
    def seconds(self) -> float:
        """The predicted duration of training in seconds."""
        return self.tokens / self.tokens_per_second

    @property
    def line(self) -> str:
        """The forecast as one line of text, with numbers rounded to three significant digits."""
        numbers = self.tokens_per_second, self.tokens, self.steps
        end = time.localtime(time.time() + self.seconds)
        until = time.strftime("%H:%M" if self.seconds < 86_400 / 2 else "%Y-%m-%d", end)
        rate, tokens, steps = (float(f"{number:.3g}") for number in numbers)
        return translated(
            "run.forecast",
            rate=rate,
            tokens=tokens,
            steps=steps,
            time=format_duration(self.seconds),
            until=until,
            used=self.memory_bytes / 2**30,
            free=self.free_bytes / 2**30,
        )

    @property
    def warning(self) -> str | None:
        """A warning if memory may not suffice, or if the run is very long or short; else None.

        The warning is English, because the records of a run contain it.
        """
        if self.memory_bytes > self.free_bytes:
            return english("warning.memory_may_not_suffice")
        if self.seconds > _MANY_DAYS * 86_400:
            return english("warning.takes_days", days=self.seconds / 86_400)
        if self.minutes is not None and self.steps < _FEW_STEPS:
            return english("warning.few_steps", steps=self.steps)
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as a dict for `trivium plan --this-machine --json`."""
        return {**dataclasses.asdict(self), "seconds": self.seconds, "warning": self.warning}


def forecast_run(trainer: Trainer, memory: MemoryUse) -> Forecast:
    """Measure the speed of a run before it starts, and predict its duration and memory.

    The measurement does not change the weights, the optimizer state or the order of rows. All
    processes must call this function.

    Raises RecipeError if the GPU runs out of memory.
    """
    borders = trainer.planned_phase_ends()
    batch = trainer.loader.step(borders[-2] if borders else 0, SINGLE_PROCESS)  # in the last phase
    try:
        rate = batch.num_tokens / _measure_step_seconds(trainer, batch)
    except torch.cuda.OutOfMemoryError:
        trainer.train_step.zero_grad()
        raise RecipeError(
            f"out of GPU memory with micro-batches of {batch.micro_batch_tokens:,} tokens: set a "
            "smaller train.micro_batch_tokens."
        ) from None
    tokens = count_budget_tokens(trainer, rate)
    return Forecast(
        tokens_per_second=rate,
        tokens=tokens,
        steps=borders[-1] if borders else tokens / batch.num_tokens,
        micro_batch_tokens=memory.micro_batch_tokens,
        memory_bytes=memory.needed,
        free_bytes=memory.free,
        minutes=trainer.recipe.train.minutes,
    )


def count_budget_tokens(trainer: Trainer, speed: float = math.nan) -> float:
    """Return the number of tokens that a run trains on until its budget is used up.

    `speed` is the throughput in tokens per second, which is needed only if the budget is in
    minutes.
    """
    train = trainer.recipe.train
    if train.minutes is not None:
        return 60.0 * train.minutes * speed
    if train.tokens is not None:
        return train.tokens
    if not (borders := trainer.planned_phase_ends()):
        return trainer.budget_steps * trainer.loader.step(0, SINGLE_PROCESS).num_tokens
    sizes = [phase.tokens_per_step for phase in trainer.loader.phases]
    starts = [0, *borders]
    return sum(
        size * (stop - start) for size, start, stop in zip(sizes, starts, borders, strict=False)
    )


def print_forecast(
    trainer: Trainer, memory: MemoryUse, metadata: Mapping[str, Any], log: ProgressLine
) -> dict[str, Any]:
    """Print a speed forecast, unless the run takes only a few seconds.

    Returns the entries to add to the run metadata. The dict is empty if no forecast is printed. All
    processes must call this function.

    Args:
        trainer: the trainer of the run.
        memory: the predicted memory use.
        metadata: the run metadata so far; needed only on rank 0.
        log: the progress line.

    Raises:
        RecipeError: the budget of a published recipe does not suit this machine or text.
    """
    parallel, seconds = trainer.parallel, 0.0
    if parallel.is_main:
        minutes, peak = trainer.recipe.train.minutes, metadata["peak_flops"] or math.inf
        if minutes is None:
            flops = metadata["flops_per_token"] * count_budget_tokens(trainer)
            seconds = flops / (peak * parallel.size)
        else:
            seconds = 60.0 * minutes
    [seconds] = parallel.all_reduce_max(seconds)
    _check_published_budget(trainer, seconds, at_least=True)
    drawn = any(stream.objective.rolls_out for stream in trainer.loader.streams)
    if seconds <= _MIN_RUN_SECONDS or drawn:  # the number of sampled tokens is not known
        return {}
    log.update(translated("run.measuring_speed"))
    try:
        forecast = forecast_run(trainer, memory)
    except RecipeError:
        if parallel.size > 1:  # the other processes wait for this one
            raise
        return {}  # the run itself will use smaller micro-batches
    [seconds] = parallel.all_reduce_max(forecast.seconds)
    log.print_line(labelled("forecast", forecast.line))
    _check_published_budget(trainer, seconds)
    if parallel.is_main and not (trainer.recipe.labelled or trainer.recipe.mix):
        _print_epochs(trainer, forecast, metadata["num_parameters"], log)
    if forecast.warning is not None:
        log.warn(translate_english(forecast.warning))
    return {"forecast": forecast.to_dict()}


def _check_published_budget(trainer: Trainer, seconds: float, *, at_least: bool = False) -> None:
    """Check that the budget of a published recipe suits this machine and text.

    Nothing is checked if the user has set the budget.

    Args:
        trainer: the trainer of the run.
        seconds: the predicted duration of the run on this machine.
        at_least: whether `seconds` is only a lower bound of the duration.

    Raises:
        RecipeError: the run takes longer than a day, or repeats its text more often than the paper.
    """
    recipe, preset = trainer.recipe, trainer.recipe.model.preset
    if preset is None or recipe.train.budget is None or not has_published_budget(recipe):
        return
    published, (name, size) = published_recipes()[preset], recipe.train.budget
    epochs = count_budget_tokens(trainer) / (
        trainer.loader.steps_per_epoch() * trainer.loader.phases[-1].tokens_per_step
    )
    paper_epochs = published.data["epochs"].value if "epochs" in published.data else math.inf
    problems = []
    if seconds > _DAY:
        least = "at least " if at_least else "about "
        problems.append(f"takes {least}{seconds / _DAY:,.1f} days here")
    if epochs > 1.05 * paper_epochs:
        problems.append(
            f"reads this text {epochs:,.0f} times, while {published.paper.partition(',')[0]} read "
            f"theirs {paper_epochs:,.0f} times"
        )
    if problems:
        raise RecipeError(
            f"the published budget of {preset}, train.{name} = {size:,}, {' and '.join(problems)}. "
            "Set your own budget, such as --set train.minutes=60 or --set train.steps=2000; "
            f"--set train.{name}={size} trains as published all the same."
        )


def _print_epochs(trainer: Trainer, forecast: Forecast, parameters: int, log: ProgressLine) -> None:
    """Print the number of epochs, if there is more than one.

    If the run has more epochs than are useful, the useful number is printed as well.
    """
    # The last step of an epoch may be smaller, so a budget in epochs is used as it is.
    steps_per_epoch = trainer.loader.steps_per_epoch()
    epochs = trainer.recipe.train.epochs or forecast.steps / steps_per_epoch
    if epochs < 1.05:
        return
    message = translated("run.passes", passes=epochs)
    tokens = forecast.tokens / epochs
    useful = estimate_useful_epochs(tokens, parameters)
    if round(epochs) > useful and defaults.decays_over_epochs(trainer.recipe):
        message += translated(
            "run.useful_epochs",
            tokens=float(f"{tokens:.3g}"),
            parameters=float(f"{parameters:.3g}"),
            useful=useful,
        )
    log.print_line(labelled("passes", message))


def estimate_useful_epochs(tokens_per_epoch: float, num_parameters: int) -> int:
    """Return the number of epochs (1 to 16) after which a small causal model stops improving.

    The formula 25 sqrt(tokens per epoch / parameters) was fitted to `llama-tiny` and `llama-mini`
    (2.5 and 7 million parameters, byte-level BPE with 8,192 tokens) on 0.25 and 1 MB of text. These
    models reached their lowest losses after 2 to 8 epochs, and longer runs had higher losses
    (benchmarks/LOG.md). Larger models also improve little beyond 16 epochs (Muennighoff et al.
    2023).
    """
    return max(1, min(16, round(25.0 * math.sqrt(tokens_per_epoch / num_parameters))))


def build_trainer_without_data(recipe: Recipe) -> tuple[Trainer, MemoryUse]:
    """Build a trainer with random weights and random tokens, for timing training steps.

    Returns the trainer and its predicted memory use. Raises RecipeError for labelled examples,
    several data sources, a budget in epochs, or a model that does not fit in memory.
    """
    reasons = {
        "labelled examples, whose lengths only the data shows": recipe.labelled,
        "several sources ([[mix]]), whose sizes only the data shows": recipe.mix,
        "train.epochs, whose tokens only the trained tokenizer counts": recipe.train.epochs,
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise RecipeError(
            "a forecast without a run needs one source of text and a budget in steps, tokens or "
            f"minutes; this recipe has {reason}, with or without --data. Start the run: it prints "
            "its forecast before the first step."
        )
    objective = recipe.objectives[0]
    spec, vocabulary = resolve_model_spec(recipe, recipe.data.paths)
    objective.check_tokens(vocabulary)
    spec = spec.with_dropout(defaults.dropout(recipe))
    recipe = defaults.complete(recipe, spec)
    device = hardware.choose_device(recipe.train.device)
    length, batch_tokens = defaults.row_length(recipe), recipe.train.batch_tokens
    assert batch_tokens is not None
    rows = max(1, batch_tokens // length)
    ids = np.random.default_rng(0).choice(vocabulary.regular_ids, rows * length)
    stream = BatchStream(
        "",
        objective,
        Rows(ids, length),
        vocabulary,
        rows_per_step=rows,
        separate_documents=recipe.data.separate_documents,
        has_aux_loss=spec.has_aux_loss,
    )

    def build_module(device: torch.device) -> Any:
        """Build the module to be trained, with its weights on `device`."""
        quantize = None if device.type == "meta" else recipe.model.quantize
        start = device if quantize is None else torch.device("cpu")
        module = objective.build(spec, seed=recipe.seed, device=start)
        model = objective.models_to_save(module)[""]
        recipe.freeze_or_add_lora(model)
        if quantize is not None:
            quantize_base(model, quantize, device)
            module.to(device)
        return module

    planned = build_module(torch.device("meta"))
    precision = hardware.choose_precision(recipe.train.precision, device, planned, {}).precision
    memory = fit_memory(
        recipe, planned, [stream], SINGLE_PROCESS, precision=precision, device=device
    )
    module = build_module(device)
    if recipe.train.uses_flex(device):
        module.use_flex_attention()
    if recipe.train.compiles(device) and recipe.model.quantize is None:
        module.compile_blocks()
    tokens = memory.micro_batch_tokens
    loader = Loader([stream], [1.0], seed=recipe.seed, micro_batch_tokens=tokens)
    optimizers = recipe.optimizer.build(module, precision)
    carried = create_carried_state(module, stream)
    trainer = Trainer(
        recipe, TrainStep(module), loader, optimizers, device, precision, carried=carried
    )
    return trainer, memory


def resolve_model_spec(recipe: Recipe, data_paths: Sequence[str] = ()) -> tuple[Spec, Vocabulary]:
    """Return the spec of the model that a recipe trains, and the vocabulary of its tokenizer.

    The spec includes the heads that the objectives need, unless they depend on labelled examples.

    If the tokenizer is not trained yet, the vocabulary consists of special tokens and placeholders.
    The vocabulary size is then taken from the recipe. If the recipe does not set it, it is
    estimated from the amount of text in `data_paths`, or else taken from the model's preset.
    """
    spec, vocabulary = _resolve_headless_spec(recipe, data_paths)
    if recipe.labelled:
        return spec, vocabulary
    heads = {head.kind: head for one in recipe.objectives for head in one.heads(spec)}
    return spec.with_heads(tuple(heads.values())), vocabulary


def _resolve_headless_spec(recipe: Recipe, data_paths: Sequence[str]) -> tuple[Spec, Vocabulary]:
    """Return the spec of the recipe's model without task heads, and the vocabulary.

    The vocabulary size of the spec is already set.
    """
    base = open_base_model(recipe, verify=False)
    if base is not None:
        tokenizer, spec = base.lm.tokenizer, base.lm.spec
        known = None if tokenizer is None else tokenizer.vocabulary
        return spec, known or Vocabulary(size=spec.vocab_size)
    spec, tokenizer = recipe.model.build_spec(), recipe.tokenizer
    assert spec is not None
    if isinstance(tokenizer, TokenizerFile):
        vocabulary = Tokenizer.load(tokenizer.path).vocabulary
        return defaults.with_vocabulary_sizes(spec, vocabulary.size), vocabulary
    assert isinstance(tokenizer, TokenizerConfig)
    size = tokenizer.vocab_size
    if size is None and data_paths:
        data = recipe.data
        # Raise an error now, not during the run, if the text cannot be read.
        reading = ReadOptions(data.separator, data.text_field, data.errors, data.encoding)
        next(read_documents(data_paths, reading))
        size = defaults.vocabulary_size(spec, estimate_text_bytes(data_paths))
    if size is not None:
        source = size if recipe.model.separate_vocabularies else None
        spec = defaults.with_vocabulary_sizes(spec, size, source)
    special = tokenizer.special_vocabulary
    specials = tuple(range(special.size))
    return spec, dataclasses.replace(special, size=spec.vocab_size, special_ids=specials)


def _measure_step_seconds(trainer: Trainer, batch: GlobalBatch) -> float:
    """Return the time of a training step in seconds, estimated from a part of the step.

    The forward and backward pass of one micro-batch, or of some of its rows, is timed and
    extrapolated to the whole training step. The optimizer step is timed separately.
    """
    part, together = batch.micro_batches[0], batch.stream.objective.needs_whole_step
    parallel, num_groups = trainer.parallel, trainer.parallel.data_parallel_size
    # Start with few rows, unless each number of rows would be compiled separately.
    grows = trainer.device.type == "cpu" and not (trainer.recipe.train.compile or together)
    rows, repeated = 1 if grows else part.num_rows, together  # a whole step is run only once

    def run_micro_batch() -> None:
        """Run a forward and backward pass on the first `rows` rows of the micro-batch."""
        some = (part.slice_rows(0, rows),)  # the same rows on every process
        text_streams = tuple(each[:rows] for each in batch.text_streams[:1])
        one = dataclasses.replace(
            batch, micro_batches=some, micro_batch_weights=((0, 1.0),), text_streams=text_streams
        )
        forward_backward(trainer, one, 0)

    trainer.train_step.train()
    while True:
        [seconds] = parallel.all_reduce_max(_time_function(run_micro_batch, trainer.device))
        if repeated or (grows and seconds > _MIN_TIMED_SECONDS):
            break
        repeated = rows == part.num_rows  # the first run compiles or chooses kernels
        rows = min(2 * rows, part.num_rows)
    count = len(batch.micro_batches)
    mean_tokens = sum(each.input_ids.size for each in batch.micro_batches) / count
    in_turn = -(-count // num_groups)  # the number of micro-batches per process
    products = in_turn * seconds * mean_tokens / (rows * part.input_ids[0].size)
    return products + _measure_optimizer_seconds(trainer)


def _measure_optimizer_seconds(trainer: Trainer) -> float:
    """Return the time of gradient clipping and an optimizer step, in seconds.

    The weights do not change, because the learning rate is 0. The optimizer state is cleared
    afterwards.
    """
    set_learning_rate(trainer.optimizers, 0.0)

    def run_optimizers() -> None:
        """Clip the gradients, and run one step of every optimizer."""
        nn.utils.clip_grad_norm_(trainer.train_step.parameters(), 1.0)
        for optimizer in trainer.optimizers:
            optimizer.step()

    _time_function(run_optimizers, trainer.device)  # creates the optimizer state
    seconds = _time_function(run_optimizers, trainer.device)
    for optimizer in trainer.optimizers:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
    return seconds


def _time_function(function: Callable[[], None], device: torch.device) -> float:
    """Call a function and return the seconds until its work on the device is finished."""
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
