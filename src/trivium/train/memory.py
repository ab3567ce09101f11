"""How many tokens fit into memory at a time: the size of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import torch

from trivium.errors import RecipeError
from trivium.models import num_parameters
from trivium.spec import AnySpec, MLMHead, ModelSpec, NGramSpec, RMSNorm, RNNSpec, Stack
from trivium.train.hardware import free_memory

# Fraction of the free memory that activations may take; the rest is for what was not foreseen.
_ACTIVATION_FRACTION = 0.6
# Beyond these many tokens a micro-batch gains no speed on a CPU and leaves its caches.
_CPU_TOKENS = 4096


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


def largest_micro_batch(
    specs: Sequence[AnySpec], *, length: int, precision: torch.dtype, device: torch.device
) -> int:
    """Tokens, in rows of `length`, that can pass through the models together.

    `specs` are of all models that are trained together.

    Raises RecipeError where even weights and optimizer do not fit, or one row does not.
    """
    state = sum(16 * num_parameters(spec) for spec in specs)  # type: ignore[arg-type]
    free = free_memory(device)
    per_token = sum(
        activation_bytes_per_token(spec, length, precision, device=device.type) for spec in specs
    )
    fitting = int(_ACTIVATION_FRACTION * (free - state)) // per_token
    if fitting < length:
        need, have = (state + length * per_token) / 2**30, free / 2**30
        raise RecipeError(
            f"training this model needs about {need:.1f} GiB for weights, optimizer and one row of "
            f"{length} tokens, and {have:.1f} GiB are free on {device}: choose a smaller preset or "
            "a shorter data.length."
        )
    return min(fitting, max(_CPU_TOKENS, length)) if device.type == "cpu" else fitting
