"""Freeze parameters by name patterns, to fine-tune only a part of a model."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn

from trivium.errors import SpecError, did_you_mean
from trivium.models import LanguageModule
from trivium.nn.part import num_weights

_EMBEDDINGS = ("tokens.*", "source_tokens.*", "before", "*coder.embedding.*")
_KEYWORDS = ("none", "embeddings", "layers:N", "encoder", "body")


class ParameterCounts(NamedTuple):
    """The number of trainable and of frozen parameters. Shared parameters are counted once."""

    trained: int
    frozen: int


def count_parameters(module: nn.Module) -> ParameterCounts:
    """Return the number of trainable and the number of frozen parameters in a module."""
    counts = [0, 0]
    for weight in module.parameters():
        counts[not weight.requires_grad] += num_weights(weight)
    return ParameterCounts(*counts)


def set_trainable(model: nn.Module, names: Collection[str]) -> ParameterCounts:
    """Make the parameters in `names` trainable and freeze all others.

    Returns the number of trainable and of frozen parameters.
    """
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in names)
    return count_parameters(model)


def freeze(model: LanguageModule, patterns: str) -> ParameterCounts:
    """Freeze the parameters whose names match `patterns`, and make all others trainable.

    The model is changed in place. Returns the number of trainable and of frozen parameters.

    Args:
        model: a model without a LoRA adapter. An adapter already freezes the base model.
        patterns: patterns for parameter names in shell syntax, separated by commas. A pattern that
            starts with "!" keeps the matching parameters trainable. If several patterns match a
            name, the last one decides: "*.weight,!*norm.weight,!heads.*" trains biases, norms and
            heads (BitFit, Zaken et al. 2021). A keyword can replace the patterns: "none" freezes
            nothing; "embeddings" freezes the embeddings; "layers:N" the embeddings and the lowest N
            layers of every stack; "encoder" the encoder and its token embeddings; "body" all
            parameters except the heads.

    Raises:
        SpecError: a pattern without "!" matches no parameter, no parameter is left to train, or the
            model has a LoRA adapter. In these cases, the model is not changed.
    """
    names = [name for name, _ in model.named_parameters()]
    if any(name.endswith(".lora_a") for name in names):
        raise SpecError("this model has a LoRA adapter, which freezes its base: do not freeze it.")
    frozen: set[str] = set()
    for pattern in _expand_patterns(model, patterns):
        plain = pattern.removeprefix("!")
        matches = {name for name in names if fnmatchcase(name, plain)}
        if not matches and pattern == plain and pattern not in _EMBEDDINGS:
            raise SpecError(
                f'freeze: "{pattern}" matches no parameter of this model; give one of '
                f"{', '.join(_KEYWORDS)}, or patterns of names such as {names[-1]}."
                f"{did_you_mean(plain, [*_KEYWORDS, *names])}"
            )
        frozen = frozen - matches if pattern.startswith("!") else frozen | matches
    if frozen.issuperset(names):
        raise SpecError(f'freeze: "{patterns}" leaves nothing of this model to train.')
    return set_trainable(model, set(names) - frozen)


def _expand_patterns(model: LanguageModule, patterns: str) -> list[str]:
    """Return the list of name patterns that the argument `patterns` of `freeze` stands for.

    A keyword such as "embeddings" is expanded. Any other string is split at commas.
    """
    layers = re.fullmatch(r"layers:(\d+)", patterns)
    if layers and int(layers[1]):
        parts = [_make_layer_patterns(model, number) for number in range(int(layers[1]))]
        return [*_EMBEDDINGS, *dict.fromkeys(pattern for part in parts for pattern in part)]
    if patterns == "encoder" and model.spec.family == "encoder-only":
        patterns = "body"
    match patterns:
        case "none":
            return []
        case "embeddings":
            return [*_EMBEDDINGS]
        case "encoder" if model.spec.family == "encoder-decoder":
            own = model.spec.source_vocab_size is not None
            table = "source_tokens.*" if own else "tokens.*"
            return ["encoder.*", table]
        case "body":
            return ["*", "!heads.*"]
        case _:
            return [pattern.strip() for pattern in patterns.split(",")]


def _make_layer_patterns(model: LanguageModule, number: int) -> list[str]:
    """Return patterns for the names of the parameters in layer `number` of every stack."""
    if not model.spec.stacks:
        of_layer = re.compile(rf".*\.cells\.({number}\.\w+_l0|\w+_l{number})(_reverse)?")
        names = [name for name, _ in model.named_parameters() if of_layer.fullmatch(name)]
        return names or [f"*.cells.*_l{number}"]
    blocks = {stack.block_index(number) for stack in model.spec.stacks if number < stack.num_layers}
    return [f"*coder.layers.{block}.*" for block in sorted(blocks)] or [f"*.layers.{number}.*"]
