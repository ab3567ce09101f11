"""Which parameters of a model are trained: chosen by name, counted."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from torch import nn

from trivium.models import LanguageModule
from trivium.models.heads import VocabularyHead


class ParameterCounts(NamedTuple):
    """Numbers of parameters; weights that are shared count once."""

    trained: int
    frozen: int

    @classmethod
    def of(cls, model: nn.Module) -> ParameterCounts:
        """As the model stands."""
        counts = [0, 0]
        for weight in model.parameters():
            counts[not weight.requires_grad] += weight.numel()
        return cls(*counts)


def train_only(model: nn.Module, names: Collection[str]) -> ParameterCounts:
    """Train the named parameters and freeze all others."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in names)
    return ParameterCounts.of(model)


def task_heads(model: LanguageModule) -> list[str]:
    """The heads that a task brings with it: all but those over the vocabulary."""
    heads = model.heads.items()
    return [f"heads.{kind}" for kind, head in heads if not isinstance(head, VocabularyHead)]


def inside(name: str, modules: Collection[str]) -> bool:
    """Whether a parameter is one of the named, or of a module that is, or inside of one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)
