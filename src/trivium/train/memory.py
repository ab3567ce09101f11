"""How many tokens fit into memory at a time: the size of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import torch

from trivium.errors import RecipeError
from trivium.models import num_parameters
from trivium.spec import AnySpec, ModelSpec, NGramSpec, RNNSpec
from trivium.train.hardware import free_memory

# Fraction of the free memory that activations may take; the rest is for what was not foreseen.
_ACTIVATION_FRACTION = 0.6
# Beyond these many tokens a micro-batch gains no speed on a CPU and leaves its caches.
_CPU_TOKENS = 4096


def activation_bytes_per_token(spec: AnySpec, length: int, precision: torch.dtype) -> int:
    """Bytes kept between forward and backward for one token, estimated from the spec.

    A block keeps its residual stream and norms in float32 and, in `precision`, the inputs of its
    products; also attention's scores and probabilities, which the explicit product on a CPU keeps
    and SDPA on a GPU does not (there the estimate is too large). A recurrent layer keeps its gates,
    states and inputs, an n-gram model its contexts.
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
            return _transformer_bytes(spec, length, torch.finfo(precision).bits // 8)
        case _:
            assert_never(spec)


def _transformer_bytes(spec: ModelSpec, length: int, item: int) -> int:
    total = 12 * spec.d_model
    for is_decoder, stack in ((False, spec.encoder), (True, spec.decoder)):
        if stack is None:
            continue
        inner = stack.feed_forward.d_ff * (4 if stack.feed_forward.gated else 2)
        for attention in stack.attentions:
            width = attention.head_dim * (2 * attention.num_heads + 2 * attention.kv_heads)
            scores = 3 * attention.num_heads * length
            if is_decoder and spec.encoder is not None:
                total += item * (2 * width + scores) + 12 * spec.d_model
            total += 6 * 4 * spec.d_model + item * (2 * width + inner + scores + 2 * spec.d_model)
    return total


def largest_micro_batch(
    specs: Sequence[AnySpec], *, length: int, precision: torch.dtype, device: torch.device
) -> int:
    """Tokens, in rows of `length`, that can pass through the models together.

    `specs` are of all models that are trained together.

    Raises RecipeError where even weights and optimizer do not fit, or one row does not.
    """
    state = sum(16 * num_parameters(spec) for spec in specs)  # type: ignore[arg-type]
    free = free_memory(device)
    per_token = sum(activation_bytes_per_token(spec, length, precision) for spec in specs)
    fitting = int(_ACTIVATION_FRACTION * (free - state)) // per_token
    if fitting < length:
        need, have = (state + length * per_token) / 2**30, free / 2**30
        raise RecipeError(
            f"training this model needs about {need:.1f} GiB for weights, optimizer and one row of "
            f"{length} tokens, and {have:.1f} GiB are free on {device}: choose a smaller preset or "
            "a shorter data.length."
        )
    return min(fitting, max(_CPU_TOKENS, length)) if device.type == "cpu" else fitting
