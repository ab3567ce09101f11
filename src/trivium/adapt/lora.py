"""LoRA (Hu et al. 2021): frozen matrices, each with a trained product of two low-rank ones.

Shape letters: I inputs of a matrix, O its outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.adapt.freezing import ParameterCounts, train_only
from trivium.errors import SpecError, did_you_mean
from trivium.models import LanguageModule
from trivium.models.heads.vocabulary import VocabularyHead
from trivium.nn.part import Part

_ALL, _TASK_HEADS = "all-linear", "task-heads"


class LoRA(Part):
    """The form of an adapter.

    >>> LoRA(rank=4, targets=("attention", "feed_forward")).scale
    4.0

    Args:
        rank: r, directions of each update.
        alpha: the update is multiplied by alpha / r; a larger rank needs no other learning rate.
        dropout: of the input of A, while training.
        targets: linear layers of the blocks by consecutive names of their path, with * for any:
            "query", "attention", "layers.3.attention.value", "decoder.*.query"; "all-linear": every
            one.
        trained: modules or parameters trained in full beside the adapter and saved with it, named
            in the same way; "task-heads": the heads that are not over the vocabulary.
    """

    rank: Annotated[int, Field(gt=0)] = 8
    alpha: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 16.0
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("query", "value")
    trained: tuple[str, ...] = (_TASK_HEADS,)

    @property
    def scale(self) -> float:
        """alpha / r."""
        return self.alpha / self.rank


class LoRALinear(nn.Linear):
    """y = W x + b + alpha / r * B A dropout(x); W and b are those of `base`, under their names.

    A starts uniform in +-I^-0.5, as in the authors' code (the paper: normal), and B with zeros, so
    that the start is the base. Both are float32 even where W is not: their steps are small.
    Source: Hu et al. 2021, equation 3.
    """

    def __init__(self, base: nn.Linear, lora: LoRA, generator: torch.Generator) -> None:
        nn.Module.__init__(self)  # that of nn.Linear would allocate another matrix
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = lora.scale, lora.dropout
        device = base.weight.device
        dtype = torch.promote_types(base.weight.dtype, torch.float32)
        bound = self.in_features**-0.5
        start = torch.empty(lora.rank, self.in_features).uniform_(
            -bound, bound, generator=generator
        )
        self.lora_a = nn.Parameter(start.to(device, dtype))
        zeros = torch.zeros(self.out_features, lora.rank, device=device, dtype=dtype)
        self.lora_b = nn.Parameter(zeros)
        self.train(base.training)

    def forward(self, input: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        x = F.dropout(input, self.dropout, self.training)
        low_rank = F.linear(x, self.lora_a.to(x.dtype)) * self.scale
        update = F.linear(low_rank, self.lora_b.to(low_rank.dtype))
        return F.linear(input, self.weight, self.bias) + update

    def merged(self) -> Tensor:
        """W + alpha / r * B A, in the precision of W: [O, I]."""
        update = self.scale * (self.lora_b.detach() @ self.lora_a.detach())
        return (self.weight.detach() + update).to(self.weight.dtype)


def add_lora(model: LanguageModule, lora: LoRA, *, seed: int = 0) -> ParameterCounts:
    """Adapt the targets in place; all else is frozen but what `lora.trained` names.

    The model's outputs do not change until the first step of training. Names in its `state_dict`
    stay; each adapted layer gains `lora_a` [r, I] and `lora_b` [O, r].

    Raises:
        SpecError: a target or a name in `trained` that the model has not, or an adapter that is
            there already. The model is unchanged then.
    """
    layers, trained = target_layers(model, lora), trained_parameters(model, lora)
    generator = torch.Generator().manual_seed(seed)
    for name, base in layers.items():
        replace_module(model, name, LoRALinear(base, lora, generator))
    matrices = {f"{name}.lora_{matrix}" for name in layers for matrix in "ab"}
    return train_only(model, {*trained, *matrices})


def merged_state(model: LanguageModule) -> dict[str, Tensor]:
    """The `state_dict` of the same function without an adapter: the sums are the matrices.

    It is loaded into a model of the same spec. That of a model without an adapter is its own.
    """
    state = {name: weight.detach() for name, weight in model.state_dict().items()}
    for name, layer in adapted_layers(model).items():
        state[f"{name}.weight"] = layer.merged()
        del state[f"{name}.lora_a"], state[f"{name}.lora_b"]
    return state


def adapted_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers with an adapter, by path."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LoRALinear)}


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Within, the model computes what it did before the adapter was added."""
    layers = adapted_layers(model).values()
    scales = [layer.scale for layer in layers]
    try:
        for layer in layers:
            layer.scale = 0.0
        yield
    finally:
        for layer, scale in zip(layers, scales):
            layer.scale = scale


def target_layers(model: LanguageModule, lora: LoRA) -> dict[str, nn.Linear]:
    """The layers that `add_lora` would adapt, by path; raises SpecError as it does."""
    if adapted_layers(model):
        raise SpecError(
            "this model has a LoRA adapter already: load its merged_state into a new one first."
        )
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in blocks
    }
    chosen = _choose(lora.targets, list(layers), {_ALL: list(layers)}, "linear layer")
    return {name: layers[name] for name in chosen}


def trained_parameters(model: LanguageModule, lora: LoRA) -> list[str]:
    """The parameters that are trained in full beside the adapter; raises SpecError as add_lora."""
    names = [n for n, _ in model.named_parameters() if not n.endswith((".lora_a", ".lora_b"))]
    kinds = [k for k, module in model.heads.items() if not isinstance(module, VocabularyHead)]
    heads = [name for name in names if name.startswith(tuple(f"heads.{kind}." for kind in kinds))]
    return _choose(lora.trained, names, {_TASK_HEADS: heads}, "module or parameter")


def _choose(
    paths: Iterable[str], names: list[str], groups: Mapping[str, list[str]], what: str
) -> list[str]:
    """The names in one of the groups, or that hold one of the paths in whole parts."""
    chosen: set[str] = set()
    for path in paths:
        held = [name for name in names if fnmatchcase(f".{name}.", f"*.{path}.*")]
        matches = groups.get(path, held)
        if not matches and path != _TASK_HEADS:
            known = [*dict.fromkeys(part for name in names for part in name.split(".")), *groups]
            known = [part for part in known if not part.isdecimal()]
            raise SpecError(
                f'LoRA: this model has no {what} "{path}" that can be trained. Its names are '
                f"{', '.join(known)}; join those of a path by dots, with * for any between, as in "
                f'"{names[-1]}".{did_you_mean(path, known)}'
            )
        chosen.update(matches)
    return [name for name in names if name in chosen]


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module at a path of a model."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
