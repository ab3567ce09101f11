"""How many tokens fit into memory at a time: the size of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import torch

from trivium.adapt import count_parameters
from trivium.errors import RecipeError
from trivium.spec import AnySpec, MLMHead, ModelSpec, NGramSpec, RMSNorm, RNNSpec, Stack
from trivium.train.distributed import Parallel
from trivium.train.hardware import free_memory
from trivium.train.loader import BatchStream
from trivium.train.recipe import DataParallelism, Recipe

# Fraction of the free memory that activations may take; the rest is for what was not foreseen.
_ACTIVATION_FRACTION = 0.6
# Beyond these many tokens a micro-batch gains no speed on a CPU and leaves its caches.
_CPU_TOKENS = 4096
# Every process holds the whole model where it takes at most this fraction of the free memory.
_STATE_FRACTION = 0.5


def activation_bytes_per_token(
    spec: AnySpec,
    length: int,
    precision: torch.dtype,
    *,
    device: str = "cpu",
    recompute: bool = False,
) -> int:
    """Bytes kept between forward and backward for one token, counted from the spec.

    A block keeps its residual stream in float32 and, in `precision`, the inputs of its products
    (Korthikanti et al. 2022, section 4.1, count theirs so). On a CPU it also keeps the
    probabilities of attention and the output of RMSNorm, which kernels of a GPU compute again. A
    recurrent layer keeps its gates, states and inputs, an n-gram model its contexts.

    Args:
        spec: the model.
        length: tokens of a row.
        precision: of products.
        device: "cpu" or "cuda".
        recompute: every block keeps its input alone, and one of them, which is computed again,
            all of it (Chen et al. 2016).
    """
    match spec:
        case RNNSpec():
            # Gates before and after their functions, states and outputs: at most ten a cell.
            directions = 1 if spec.direction == "forward" else 2
            cells = 10 * spec.d_hidden * spec.num_layers * directions
            return 4 * (cells + 6 * spec.d_model * directions)
        case NGramSpec():
            return 4 * (3 * spec.d_context + 3 * spec.d_hidden + 2 * spec.d_output)
        case ModelSpec():
            item, on_cpu = precision.itemsize, device == "cpu"
            blocks = list(_block_bytes(spec, length, item, on_cpu=on_cpu))
            if recompute:
                blocks = [*(4 * spec.d_model for _ in blocks), max(blocks)]
            # One more norm, at the beginning or the end, and the head.
            has_dense = any(isinstance(head, MLMHead) and head.dense for head in spec.heads)
            head = item * spec.d_model * (4 if has_dense else 1)
            return sum(blocks) + _norm_bytes(spec, spec.stacks[-1], on_cpu=on_cpu) + head
        case _:
            assert_never(spec)


def _block_bytes(spec: ModelSpec, length: int, item: int, *, on_cpu: bool) -> Iterator[int]:
    """Bytes per token of every block in turn."""
    width = spec.d_model
    for is_decoder, stack in ((False, spec.encoder), (True, spec.decoder)):
        if stack is None:
            continue
        crosses = is_decoder and spec.encoder is not None
        norm, mask = _norm_bytes(spec, stack, on_cpu=on_cpu), width if stack.dropout else 0
        tensors = 1 if stack.feed_forward.activation == "relu" else 2
        inner = stack.feed_forward.d_ff * (tensors + (2 if stack.feed_forward.gated else 0))
        for attention in stack.attentions:
            heads = attention.num_heads * attention.head_dim
            keys = heads if on_cpu else attention.kv_heads * attention.head_dim
            # With dropout also the mask of the probabilities, and what it leaves of them.
            scores = attention.num_heads * length * (3 if mask else 1) if on_cpu else 0
            one = norm + item * (width + mask + 2 * heads + 2 * keys + scores)
            # The encoder's output, in another precision for keys and for values.
            memory = 2 * item * width if crosses and item < 4 else 0
            yield one * (1 + crosses) + memory + norm + item * (width + mask + inner)


def _norm_bytes(spec: ModelSpec, stack: Stack, *, on_cpu: bool) -> int:
    """Its input; without a kernel of its own RMSNorm also keeps its output before the weight."""
    return spec.d_model * (8 if on_cpu and isinstance(stack.norm, RMSNorm) else 4)


@dataclass(frozen=True)
class MemoryUse:
    """How a run fits into memory: who holds the model, and the size of micro-batches.

    `idle` is a warning where these are so large that some processes have none.
    """

    data: DataParallelism
    micro_batch_tokens: int
    idle: str


def resumed_micro_batch(recipe: Recipe, before: Mapping[str, Any], parallel: Parallel) -> Recipe:
    """The recipe with the micro-batch that so many processes have begun a run with.

    Another size would draw other dropout. `before` are the facts of the run; a key of the recipe
    that was changed since decides.
    """
    recorded = before.get("recipe", {}).get("train", {}).get("micro_batch_tokens")
    size = before.get("micro_batch_tokens")
    if size is None or before.get("processes") != parallel.size:
        return recipe
    if recipe.train.micro_batch_tokens != recorded:
        return recipe
    return recipe.replace(train=recipe.train.replace(micro_batch_tokens=size))


def fit_memory(
    recipe: Recipe,
    module: Any,
    streams: Sequence[BatchStream],
    parallel: Parallel,
    *,
    precision: torch.dtype,
    device: torch.device,
) -> MemoryUse:
    """What the recipe says, or what fits; the same on all processes.

    `module` is what is trained, on any device.

    Raises RecipeError where even weights and optimizer do not fit, or one row does not.
    """
    config, parameters = recipe.parallel, count_parameters(module)
    free = free_memory(device) // (parallel.local_size if device.type == "cpu" else 1)
    # The weights may be there already.
    free += sum(one.nbytes for one in module.parameters() if one.device.type == device.type)
    state = 4 * (sum(parameters) + parameters.trained + recipe.optimizer.state_size(module))
    data, micro_batch_tokens = config.data, recipe.train.micro_batch_tokens
    if data is None:
        divided = config.tensor > 1 or config.replicas > 1
        [sharded] = parallel.all_reduce_max(divided or state > _STATE_FRACTION * free)
        data = "fsdp" if sharded else "ddp"
    if data == "fsdp":
        state //= parallel.size // config.replicas
    length = max(stream.longest for stream in streams)
    per_token = sum(
        activation_bytes_per_token(
            spec,
            length,
            precision,
            device=device.type,
            recompute=config.activation_checkpointing,
        )
        for spec in recipe.objectives[0].specs(module.spec)
    )
    row = 0.0 if micro_batch_tokens else length * per_token / _ACTIVATION_FRACTION
    if state + row > free:
        raise RecipeError(
            f"training this model takes about {(state + row) / 2**30:.1f} GiB for weights, "
            f"gradients, optimizer and {f'one row of {length}' if row else 'some'} tokens, and "
            f"{free / 2**30:.1f} GiB are free on {device}: choose a smaller preset or a shorter "
            "data.length, or train a part of its weights (model.freeze, adapter.rank)."
        )
    if micro_batch_tokens is None:
        fitting = int(_ACTIVATION_FRACTION * (free - state)) // per_token
        fitting = min(fitting, max(_CPU_TOKENS, length)) if device.type == "cpu" else fitting
        micro_batch_tokens = -int(parallel.all_reduce_max(-fitting)[0])
        if parallel.data_size > 1 or not recipe.labelled:
            micro_batch_tokens = _balanced(streams, parallel, micro_batch_tokens)
    most, idle = _balanced(streams, parallel, 1 << 62), ""
    if parallel.data_size > 1 and micro_batch_tokens > most:
        idle = (
            f"train.micro_batch_tokens = {micro_batch_tokens:,} leaves some of the {parallel.size} "
            f"processes without work: leave it out, or set at most {most:,}."
        )
    return MemoryUse(data, micro_batch_tokens, idle)


def _balanced(streams: Sequence[BatchStream], parallel: Parallel, most: int) -> int:
    """The largest micro-batch of at most `most` tokens that gives all processes equal work."""
    return min(stream.balanced_micro_batch(parallel.data_size, most) for stream in streams)
