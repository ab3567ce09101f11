"""Models: what a spec becomes."""

from __future__ import annotations

from functools import cache
from typing import overload

import torch

from trivium.errors import SpecError
from trivium.models.initialization import initialize, with_fast_initialization
from trivium.models.logits_model import LogitsModel
from trivium.models.ngram import NGramModel
from trivium.models.rnn import RecurrentModel
from trivium.models.transformer import Transformer
from trivium.spec import AnySpec, ModelSpec, NGramSpec, RNNSpec

__all__ = [
    "LanguageModule",
    "LogitsModel",
    "NGramModel",
    "RecurrentModel",
    "Transformer",
    "build",
    "flops_per_token",
    "num_parameters",
    "with_fast_initialization",
]

LanguageModule = Transformer | RecurrentModel | NGramModel
"""Any model: what objectives, the trainer and inference work with."""


@overload
def build(
    spec: ModelSpec, *, seed: int | None = None, device: torch.device | str = "cpu"
) -> Transformer: ...
@overload
def build(
    spec: AnySpec, *, seed: int | None = None, device: torch.device | str = "cpu"
) -> LanguageModule: ...


def build(
    spec: AnySpec, *, seed: int | None = None, device: torch.device | str = "cpu"
) -> LanguageModule:
    """The module that `spec` describes, initialised from `seed`, in float32 and training mode.

    Args:
        spec: the model.
        seed: of the starting weights, which are the same on every device; None: one drawn from
            PyTorch's global generator.
        device: on "meta" nothing is allocated: parameters have shapes and no numbers.

    Raises SpecError on "meta" for a tensor of more bytes than 64 bits can count.
    """
    if str(device) == "meta":
        try:
            with torch.device("meta"):
                return _construct(spec)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise SpecError(f"a tensor of this model is too large: {reason}") from None
    with torch.device("cpu"):
        model = _construct(spec)
        initialize(model, int(torch.randint(2**63 - 1, ())) if seed is None else seed)
    return model.to(device)


def _construct(spec: AnySpec) -> LanguageModule:
    match spec:
        case ModelSpec():
            return Transformer(spec)
        case RNNSpec():
            return RecurrentModel(spec)
        case NGramSpec():
            return NGramModel(spec)


def num_parameters(spec: AnySpec) -> int:
    """Every trained number, tied matrices counted once.

    >>> from trivium.presets import presets
    >>> num_parameters(presets["gpt2"])
    124439808
    """
    return sum(weight.numel() for weight in build(spec, device="meta").parameters())


@cache
def flops_per_token(spec: AnySpec, length: int) -> float:
    """Floating-point operations to train on one token of a row of `length` tokens.

    6 per weight that the token is multiplied with (2 forward, 4 backward; Kaplan et al. 2020,
    section 2.1) and 12 N H for every position that a query attends to, half of them where causal;
    a sliding window is counted as full attention. Of an encoder-decoder source and target have
    `length` tokens each, and the result is per token of the source.
    """
    model = build(spec, device="meta")
    if not isinstance(model, Transformer):
        readings = 2 if isinstance(spec, RNNSpec) and spec.direction == "two-way" else 1
        vocabulary = spec.vocab_size * spec.head_input.d_embedding * readings
        return 6.0 * (sum(map(_matrix_weights, model.blocks)) + vocabulary)
    total = 6.0 * model.spec.vocab_size * model.spec.d_embedding
    for stack in model.stacks:
        repeats = stack.spec.num_layers / stack.spec.distinct_layers
        total += 6.0 * repeats * sum(map(_matrix_weights, stack.layers))
        total += 6.0 * _matrix_weights(stack.embedding)
        attended = length / 2 if stack.causal else length
        if stack.causal and model.encoder is not None:
            attended += length
        for attention in stack.spec.attentions:
            total += 12.0 * attended * attention.num_heads * attention.head_dim
    return total


def _matrix_weights(module: torch.nn.Module) -> int:
    """Weights of the linear layers and cells of a module: no tables, norms or biases."""
    layers = (m for m in module.modules() if isinstance(m, torch.nn.Linear | torch.nn.RNNBase))
    return sum(w.numel() for m in layers for w in m.parameters() if w.ndim > 1)
