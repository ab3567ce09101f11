"""Estimates of training memory, computed from the spec, and the choice of the micro-batch size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from trivium.adapt import count_parameters
from trivium.data.batch import IGNORE_INDEX
from trivium.data.rows import Rows
from trivium.errors import RecipeError
from trivium.models import build
from trivium.models.base_model import Spec
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.responses import SLOTS
from trivium.progress import ProgressLine
from trivium.train.callback import Callback
from trivium.train.distributed import Parallel
from trivium.train.hardware import available_memory
from trivium.train.loader import BatchStream, Loader
from trivium.train.recipe import Recipe
from trivium.train.run_folder import RunFolder
from trivium.train.train_config import DataParallelism

# The fraction of the free memory for activations; the rest is a reserve for estimation errors.
_ACTIVATION_FRACTION = 0.6
# The maximum tokens per micro-batch. Larger ones are not faster; on a CPU they exceed its caches.
_CPU_TOKENS, _GPU_TOKENS = 4096, 1 << 20
# The number of logits that `nn/loss.py` computes in one chunk.
_CPU_LOGITS, _GPU_LOGITS = 2**22, 2**28
# The number of examples in which labelled tokens are counted.
_SOME_EXAMPLES = 64
# DDP is chosen if weights, gradients and optimizer state fit in this fraction of the free memory.
_STATE_FRACTION = 0.5
# NF4 has an 8-bit scale for each 64 weights.
_QUANTIZED_BYTES = {"nf4": 0.5 + 1 / 64, "int8": 1.0}


@dataclass(frozen=True)
class Layout:
    """How a training step is parallelized. The fields are keys of `[parallel]` in a recipe."""

    data: DataParallelism = "ddp"
    tensor: int = 1
    activation_checkpointing: bool = False
    context: int = 1
    reduce_once: bool = False

    def __str__(self) -> str:
        """Return the layout as text, such as "fsdp x tensor 2, checkpointing"."""
        tensor = f" x tensor {self.tensor}" if self.tensor > 1 else ""
        context = f" x context {self.context}" if self.context > 1 else ""
        checkpointing = ", checkpointing" if self.activation_checkpointing else ""
        reduction = ", one reduction" if self.reduce_once else ""
        return f"{self.data}{tensor}{context}{checkpointing}{reduction}"


@dataclass(frozen=True)
class ModelSizes:
    """The number of parameters in the model, in its largest block, and outside of all blocks."""

    parameters: int
    largest_block: int
    outside: int


@cache
def count_model_parameters(spec: Spec) -> ModelSizes:
    """Count the parameters of a model on the meta device, which allocates no memory."""
    model = build(spec, device="meta")
    blocks = [sum(weight.numel() for weight in block.parameters()) for block in model.blocks]
    parameters = sum(weight.numel() for weight in model.parameters())
    return ModelSizes(parameters, max(blocks), parameters - sum(blocks))


def training_memory(
    spec: Spec,
    *,
    rows: int,
    length: int,
    precision: torch.dtype,
    device: str = "cuda",
    layout: Layout = Layout(),
    gpus: int = 1,
    trained: float = 1.0,
    moments: float = 2.0,
    references: int = 0,
    samples: int = 0,
    labelled: float = 1.0,
    quantized: float = 0.0,
    quantized_bytes: float = 4.0,
) -> dict[str, float]:
    """Estimate the peak memory per training device in bytes, by use ("weights", "gradients", ...).

    The peak is reached at the end of a forward pass or during sampling.

    Args:
        spec: the model.
        rows: the number of rows in a micro-batch.
        length: the number of tokens in a row.
        precision: the dtype of matmuls; weights, gradients and optimizer state are float32.
        device: "cpu" or "cuda".
        layout: how the step is parallelized.
        gpus: the number of devices.
        trained: the fraction of the parameters that are trained. Activations that frozen parameters
            would not need to save are still counted.
        moments: the number of values that the optimizer stores per trained parameter.
        references: the number of frozen reference models of the same size.
        samples: the number of texts, of `length` tokens, that the model generates at the same time.
        labelled: the fraction of tokens with labels, for which logits are computed.
        quantized: the fraction of the parameters that are quantised.
        quantized_bytes: the number of bytes per quantised parameter.
    """
    sizes = count_model_parameters(spec)  # type: ignore[arg-type]
    item, tensor = precision.itemsize, layout.tensor
    shards = tensor if layout.data == "ddp" else gpus
    if layout.data == "fsdp":
        # Unsharded weights with gradients: those outside of the blocks, in float32, and two blocks,
        # one of them prefetched.
        copies = 8 * sizes.outside + 2 * (item + 4) * sizes.largest_block
    else:
        exact = (1.0 - quantized) * sizes.parameters
        copies = item * exact if precision is not torch.float32 else 0
    most = _CPU_LOGITS if device == "cpu" else _GPU_LOGITS
    own_length = -(-length // layout.context)  # the positions of a row on this device
    chunk = min(most, labelled * rows * own_length * spec.vocab_size)
    table = spec.vocab_size * spec.head_config.d_embedding
    kept = spec.activation_bytes(
        length, item, on_cpu=device == "cpu", recompute=layout.activation_checkpointing
    )
    memory = {
        "weights": (4 + quantized * (quantized_bytes - 4)) * sizes.parameters / shards,
        "gradients": 4 * trained * sizes.parameters / shards,
        "optimizer": 4 * moments * trained * sizes.parameters / shards,
        "copies": copies / tensor,
        # Logits with their gradient; the gradient of the embedding before and after scaling.
        "logits": ((4 + 2 * item) * chunk + 8 * table) / tensor,
        "activations": kept * rows * own_length / tensor,
    }
    if layout.data == "fsdp" and layout.reduce_once:  # whole gradients, then the shards of them
        memory["gradients"] += 4 * trained * sizes.parameters / tensor
    if layout.context > 1:  # keys and values of the other processes, kept for the backward pass
        gathered = gathered_numel(spec) * item * rows * (length - own_length)
        layers = spec.stacks[0].num_layers if layout.activation_checkpointing else 1
        memory["activations"] += gathered / layers
    if references:
        memory["reference"] = 4.0 * references * sizes.parameters / shards
    if samples:  # generated, then scored: the memory beyond what is unused at that time
        free = sum(memory[name] for name in ("gradients", "logits", "activations"))
        read = 12.0 * min(most, labelled * samples * length * spec.vocab_size)
        drawn = estimate_generation_memory(spec, samples, length)  # type: ignore[arg-type]
        memory["samples"] = max(0.0, drawn - free, read - free)
    return memory


def gathered_numel(spec: Spec) -> int:
    """Return the elements of keys and values per token that context parallelism gathers."""
    attentions = [each for stack in spec.stacks for each in stack.attentions]
    return sum(2 * each.kv_heads * each.head_dim for each in attentions)


@cache
def estimate_generation_memory(spec: Spec, num_texts: int, length: int) -> float:
    """Estimate the memory in bytes for generating a batch of texts of `length` tokens.

    This is the memory of the KV caches and of the next-token distributions. A distribution needs
    float32 logits and probabilities, and float64 probabilities and their cumulative sums.
    """
    slots = build(spec, device="meta").new_cache(num_texts, min(length, spec.max_length or length))
    kept = sum(one.nbytes for state in slots.states for one in state.tensors)
    return kept + 24.0 * num_texts * spec.vocab_size


def training_memory_options(recipe: Recipe, module: nn.Module) -> dict[str, Any]:
    """Return the arguments of `training_memory` that depend on the recipe, by name.

    These arguments are the fraction of trained parameters, the size of the optimizer state, the
    number of reference models, and the number of texts that are generated at the same time.
    `module` is the module to train; the weights that the recipe freezes must already be frozen.
    """
    parameters, objective = count_parameters(module), recipe.objectives[0]
    draws = isinstance(objective, PolicyGradient)
    quantized = {}
    if (kind := recipe.model.quantize) is not None:
        linear = sum(map(count_linear_weights, objective.models_to_save(module)[""].blocks))
        quantized = {
            "quantized": linear / max(1, sum(parameters)),
            "quantized_bytes": _QUANTIZED_BYTES[kind],
        }
    return {
        "trained": parameters.trained / max(1, sum(parameters)),
        "moments": recipe.optimizer.state_size(module) / max(1, parameters.trained),
        "references": int(draws and objective.has_reference and not recipe.adapter.rank),
        "samples": SLOTS if draws else 0,
        **quantized,
    }


def count_linear_weights(block: nn.Module) -> int:
    """Return the number of weights in the matrices of a block's linear layers, without adapters."""
    layers = (m for name, m in block.named_modules() if not name.endswith(".base"))
    return sum(m.in_features * m.out_features for m in layers if isinstance(m, nn.Linear))


@dataclass(frozen=True)
class MemoryUse:
    """The data parallelism and micro-batch size chosen for a run, and the memory it then needs.

    Args:
        data: whether every process has the whole model ("ddp") or a shard of it ("fsdp").
        micro_batch_tokens: the maximum number of tokens per forward pass.
        needed: the peak memory of the run's tensors, in bytes.
        free: the free memory, in bytes.
        idle: a warning if micro-batches are so large that some processes get none; otherwise "".
    """

    data: DataParallelism
    micro_batch_tokens: int
    needed: float
    free: float
    idle: str


def reuse_micro_batch_size(
    recipe: Recipe, metadata: Mapping[str, Any], parallel: Parallel
) -> Recipe:
    """Set the micro-batch size of a resumed run to its earlier size. Returns the new recipe.

    Another size would draw different dropout masks. The recipe is returned unchanged if the user
    has changed its micro-batch size, or if the number of processes has changed. `metadata` is the
    metadata of the run.
    """
    recorded = metadata.get("recipe", {}).get("train", {}).get("micro_batch_tokens")
    size = metadata.get("micro_batch_tokens")
    if size is None or metadata.get("processes") != parallel.size:
        return recipe
    if recipe.train.micro_batch_tokens != recorded:
        return recipe
    return recipe.replace(train=recipe.train.replace(micro_batch_tokens=size))


class StoreMicroBatchSize(Callback):
    """A callback that stores the new micro-batch size if it is reduced for lack of memory.

    The callback also warns the user. `--resume` then continues with the reduced size.

    Args:
        run: the folder of the run.
        log: the progress line.
        loader: the loader whose micro-batch size the trainer may halve.
    """

    def __init__(self, run: RunFolder, log: ProgressLine, loader: Loader) -> None:
        self.run, self.log, self.loader = run, log, loader
        self.stored = loader.micro_batch_tokens

    def on_step(self, step: int, progress: float) -> None:
        """If this step reduced the micro-batch size, store the new size and warn the user."""
        size = self.loader.micro_batch_tokens
        if size == self.stored:
            return
        self.stored = size
        self.run.write_metadata(self.run.read_metadata() | {"micro_batch_tokens": size})
        self.log.warn(
            f"out of GPU memory at step {step}: from now on micro-batches have {size:,} tokens, "
            "also after --resume; this changes dropout and rounding, nothing else."
        )


def fit_memory(
    recipe: Recipe,
    module: Any,
    streams: Sequence[BatchStream],
    parallel: Parallel,
    *,
    precision: torch.dtype,
    device: torch.device,
) -> MemoryUse:
    """Choose the data parallelism and the micro-batch size so that training fits in memory.

    Values that the recipe sets are not changed. All processes choose the same values. `module` is
    the module to train, on any device.

    Raises RecipeError if the weights and the optimizer state, or a single row, do not fit.
    """
    estimate = _Estimate.from_recipe(recipe, module, streams, parallel, precision, device)
    data = recipe.parallel.data or _choose_layout(recipe, estimate, parallel)
    _check_memory(recipe, estimate, data, device)
    micro_batch_tokens = recipe.train.micro_batch_tokens
    if micro_batch_tokens is None:
        micro_batch_tokens = _choose_micro_batch_tokens(recipe, estimate, data, streams, parallel)
    most, idle = _max_balanced_micro_batch_tokens(streams, parallel, 1 << 62), ""
    if parallel.data_parallel_size > 1 and micro_batch_tokens > most:
        idle = (
            f"train.micro_batch_tokens = {micro_batch_tokens:,} leaves some of the {parallel.size} "
            f"processes without work: leave it out, or set at most {most:,}."
        )
    rows = min(micro_batch_tokens // estimate.length, estimate.most_rows)
    needed = estimate.total_bytes(max(1, rows), data)
    return MemoryUse(data, micro_batch_tokens, needed, estimate.free, idle)


@dataclass(frozen=True)
class _Estimate:
    """The memory of a run as a function of the data parallelism and the micro-batch size.

    Args:
        specs: the specs of the models that are trained together.
        length: the number of tokens of the longest row, including generated tokens.
        most_rows: the number of rows in a step.
        free: the number of bytes available to the run.
        layout: how a step is parallelized; its field `data` is ignored.
        options: the remaining arguments of `training_memory`.
    """

    specs: Sequence[Spec]
    length: int
    most_rows: int
    free: float
    layout: Layout
    options: Mapping[str, Any]

    @classmethod
    def from_recipe(
        cls,
        recipe: Recipe,
        module: Any,
        streams: Sequence[BatchStream],
        parallel: Parallel,
        precision: torch.dtype,
        device: torch.device,
    ) -> Self:
        """Create the memory estimate of a run from its recipe, model, data and processes.

        `module` is the module to train, on any device; `streams` are its data sources.
        """
        config, objective = recipe.parallel, recipe.objectives[0]
        free = available_memory(device) // (parallel.local_size if device.type == "cpu" else 1)
        # The weights may already be on the device.
        weights = sum(one.nbytes for one in module.parameters() if one.device.type == device.type)
        free += weights
        length = max(stream.longest for stream in streams)
        most_rows = max(stream.rows_per_step for stream in streams)
        state = training_memory_options(recipe, module)
        labelled = max(map(_estimate_labelled_fraction, streams))
        if isinstance(objective, PolicyGradient):
            length += objective.max_new_tokens
            labelled = objective.max_new_tokens / length
            most_rows *= objective.num_generations
            state["samples"] = min(state["samples"], most_rows)
            free += state["references"] * weights
        specs = objective.model_specs(objective.models_to_save(module)[""].spec)
        state |= {"labelled": labelled, "gpus": parallel.size // config.replicas}
        state |= {"precision": precision, "device": device.type}
        layout = Layout(
            "ddp",
            config.tensor,
            config.activation_checkpointing,
            context=config.context,
            reduce_once=config.reduce_once,
        )
        return cls(specs, length, most_rows, free, layout, state)

    def bytes_by_use(self, rows: int, data: DataParallelism) -> dict[str, float]:
        """Return the memory of all models in bytes, by use ("weights", "gradients", ...).

        `rows` is the number of rows per micro-batch, and `data` is the data parallelism.
        """
        options = {**self.options, "rows": rows, "layout": replace(self.layout, data=data)}
        models = [training_memory(spec, length=self.length, **options) for spec in self.specs]
        return {name: sum(one[name] for one in models) for name in models[0]}

    def total_bytes(self, rows: int, data: DataParallelism) -> float:
        """Return the total memory in bytes. The arguments are those of `bytes_by_use`."""
        return sum(self.bytes_by_use(rows, data).values())

    def total_bytes_with_reserve(self, rows: int, data: DataParallelism) -> float:
        """Return the total memory in bytes, plus a reserve proportional to the activations."""
        reserve = (1 / _ACTIVATION_FRACTION - 1) * self.bytes_by_use(rows, data)["activations"]
        return self.total_bytes(rows, data) + reserve


def _choose_layout(recipe: Recipe, estimate: _Estimate, parallel: Parallel) -> DataParallelism:
    """Choose the data parallelism: "ddp" if the whole model fits in every process, else "fsdp"."""
    is_sharded = recipe.parallel.tensor > 1 or recipe.parallel.replicas > 1
    too_large = estimate.total_bytes(0, "ddp") > _STATE_FRACTION * estimate.free
    [sharded] = parallel.all_reduce_max(is_sharded or too_large)
    return "fsdp" if sharded else "ddp"


def _check_memory(
    recipe: Recipe, estimate: _Estimate, data: DataParallelism, device: torch.device
) -> None:
    """Raise RecipeError if the weights and optimizer state, or a single row, do not fit in memory.

    If the recipe sets the micro-batch size, activations are not checked.
    """
    least = estimate.total_bytes_with_reserve(1, data)
    if recipe.train.micro_batch_tokens is not None:  # the user is responsible for activations
        state = estimate.bytes_by_use(0, data)
        least = sum(state[name] for name in ("weights", "gradients", "optimizer"))
    if least > estimate.free:
        raise RecipeError(
            f"training this model takes about {least / 2**30:.1f} GiB for weights, gradients, "
            f"optimizer and one row of {estimate.length} tokens at least, and "
            f"{estimate.free / 2**30:.1f} GiB are free on {device}: choose a smaller "
            "preset or a shorter data.length, or train a part of its weights (model.freeze, "
            "adapter.rank)."
        )


def _choose_micro_batch_tokens(
    recipe: Recipe,
    estimate: _Estimate,
    data: DataParallelism,
    streams: Sequence[BatchStream],
    parallel: Parallel,
) -> int:
    """Choose the largest micro-batch size, in tokens, that fits in the memory of all processes."""
    on_cpu = estimate.options["device"] == "cpu"
    most_rows = max(1, (_CPU_TOKENS if on_cpu else _GPU_TOKENS) // estimate.length)
    rows = bisect_right(
        range(1, most_rows + 1),
        estimate.free,
        key=lambda rows: estimate.total_bytes_with_reserve(rows, data),
    )
    fitting = -int(parallel.all_reduce_max(-rows * estimate.length)[0])
    if parallel.data_parallel_size > 1 or not recipe.labelled:
        return _max_balanced_micro_batch_tokens(streams, parallel, fitting)
    return fitting


def _max_balanced_micro_batch_tokens(
    streams: Sequence[BatchStream], parallel: Parallel, max_tokens: int
) -> int:
    """Return the largest micro-batch size that gives all processes equal work for every source.

    The result is in tokens, and at most `max_tokens`.
    """
    return min(
        stream.max_balanced_micro_batch_tokens(parallel.data_parallel_size, max_tokens)
        for stream in streams
    )


def _estimate_labelled_fraction(stream: BatchStream) -> float:
    """Return the fraction of tokens that have labels, measured on a sample of examples.

    The fraction is 1 for text, and for examples that get their labels later.
    """
    if isinstance(stream.data, Rows):
        return 1.0
    rows = stream.data.take(np.arange(min(len(stream.data), _SOME_EXAMPLES)))
    if rows.labels is None:
        return 1.0
    return float((rows.labels != IGNORE_INDEX).sum() / rows.lengths.sum())
