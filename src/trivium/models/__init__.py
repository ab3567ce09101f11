"""Models: one file for each kind of model, with its spec and the module built from the spec."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import overload

import torch
from torch import nn

from trivium.errors import SpecError
from trivium.models.attention_rnn import AttentionRNN as AttentionRNN
from trivium.models.base_model import LanguageModule as LanguageModule
from trivium.models.base_model import Spec
from trivium.models.initialization import initialize
from trivium.models.initialization import with_fast_initialization as with_fast_initialization
from trivium.models.logits_model import LogitsModel as LogitsModel
from trivium.models.ngram import NGramModel as NGramModel
from trivium.models.ngram_counts import NGramCounts as NGramCounts
from trivium.models.rnn import RecurrentModel as RecurrentModel
from trivium.models.stack import Stack
from trivium.models.transformer import Transformer as Transformer
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import Block


@overload
def build(
    spec: TransformerSpec, *, seed: int | None = None, device: torch.device | str = "cpu"
) -> Transformer: ...
@overload
def build(
    spec: Spec, *, seed: int | None = None, device: torch.device | str = "cpu"
) -> LanguageModule: ...


def build(
    spec: Spec, *, seed: int | None = None, device: torch.device | str = "cpu"
) -> LanguageModule:
    """Return the module of a model, with weights initialized in float32, in training mode.

    Args:
        spec: the configuration of the model.
        seed: the seed of the initialization; None: a seed from PyTorch's global random generator.
            The same seed gives the same weights on every device.
        device: the device of the weights. On "meta", parameters have shapes but no values.

    Raises SpecError on "meta" if the size of a tensor in bytes does not fit into 64 bits.
    """
    if str(device) == "meta":
        try:
            with torch.device("meta"):
                return spec.build()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise SpecError(f"a tensor of this model is too large: {reason}") from None
    with torch.device("cpu"):
        model = spec.build()
        initialize(model, int(torch.randint(2**63 - 1, ())) if seed is None else seed)
    return model.to(device)


def num_parameters(spec: Spec) -> int:
    """Return the number of parameters of a model; tied matrices count once.

    >>> from trivium.presets import presets
    >>> num_parameters(presets["gpt2"])
    124439808
    """
    return _parameter_counts(spec)[0]  # type: ignore[arg-type]


def active_parameters(spec: Spec) -> int:
    """Return the number of parameters used for a token: all but those of experts not chosen."""
    total, inactive = _parameter_counts(spec)  # type: ignore[arg-type]
    return total - inactive


@cache
def _parameter_counts(spec: Spec) -> tuple[int, int]:
    """Return the number of all parameters, and of those in experts that are inactive per token.

    Only one of several equal layers is built, and its numbers are multiplied.
    """
    if not isinstance(spec, TransformerSpec):
        return _num_parameters(build(spec, device="meta")), 0
    encoder, decoder = map(_deduplicate_layers, (spec.encoder, spec.decoder))
    few = spec.replace(encoder=encoder and encoder[0], decoder=decoder and decoder[0])
    model = build(few, device="meta")
    total, inactive = _num_parameters(model), 0
    repeats = [stack[1] for stack in (encoder, decoder) if stack is not None]
    for stack, counts in zip(model.stacks, repeats, strict=True):
        for layer, count in zip(stack.layers, counts, strict=True):
            assert isinstance(layer, Block)
            total += (count - 1) * _num_parameters(layer)
            inactive += count * sum(map(_num_parameters, layer.inactive_experts))
    return total, inactive


def _deduplicate_layers(stack: Stack | None) -> tuple[Stack, list[int]] | None:
    """Return a stack of the distinct layers, and how often the original stack contains each.

    The first layer always counts as distinct, because it may lack a norm (`Stack.first_norm`). With
    `num_layer_groups` (shared weights), the stack is unchanged, and each group counts once. Returns
    None for no stack.
    """
    if stack is None:
        return None
    if stack.num_layer_groups:
        return stack, [1] * stack.num_layer_groups
    first, *others = stack.every_layer
    kinds = Counter(others)
    few = stack.replace(num_layers=1 + len(kinds), first_layers=(), layers=(first, *kinds))
    return few, [1, *kinds.values()]


def _num_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(weight.numel() for weight in module.parameters())


@cache
def flops_per_token(spec: Spec, length: int) -> float:
    """Return the training FLOPs per token, forward and backward, in a row of `length` tokens.

    Each weight of a matrix that a token is multiplied with counts 6 FLOPs (2 forward, 4 backward;
    Kaplan et al. 2020, section 2.1). Attention scores and weighted sums count 12 N H per attended
    position, for N heads of width H. A token attends to half of the positions on average if
    attention is causal. A sliding window counts as full attention. For an encoder-decoder, source
    and target have `length` tokens each, and the result is per source token.
    """
    return build(spec, device="meta").flops_per_token(length)
