"""LoRA (Hu et al. 2021): frozen matrices, and beside each a trained product of two thin ones.

Shape letters: I inputs of a matrix, O its outputs, r rank.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.adapt.parameters import ParameterCounts, inside, task_heads, train_only
from trivium.errors import SpecError, did_you_mean
from trivium.models import LanguageModule, RecurrentModel
from trivium.spec import Part

_TASK_HEADS = "task-heads"
# Names of a part of a block -> the modules whose linear layers it means.
_PARTS = {
    "attention": ("attention", "cross_attention"),
    "feed-forward": ("feed_forward",),
}


class LoRA(Part):
    """What an adapter is made of.

    >>> LoRA(rank=4, targets=("attention", "feed-forward")).scale
    4.0

    Args:
        rank: r, how many directions each update has.
        alpha: the update is multiplied with alpha / r; a larger rank needs no other learning rate.
        dropout: of what the thin matrices read, while training.
        targets: the linear layers that are adapted, by their own names in a block (query, key,
            value, output, up, gate, down), by the end of their path ("cross_attention.query",
            "layers.3.attention.value"), or "attention", "feed-forward", "all".
        trained: modules or parameters trained in full beside the adapter and saved with it, by
            path; "task-heads" are the heads that are not over the vocabulary.
    """

    rank: Annotated[int, Field(gt=0)] = 8
    alpha: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 16.0
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("query", "value")
    trained: tuple[str, ...] = (_TASK_HEADS,)

    @property
    def scale(self) -> float:
        """What the product of the thin matrices is multiplied with."""
        return self.alpha / self.rank


class LoRALinear(nn.Linear):
    """y = W x + b + alpha / r * B A dropout(x); W and b are those of `base`, under their names.

    A starts uniform in +-I^-0.5, as in the authors' code (the paper: normal), and B with zeros, so
    that the start is the base. Both are float32 even where W is not: their steps are small.
    Source: Hu et al. 2021, equation 3.
    """

    def __init__(self, base: nn.Linear, lora: LoRA, generator: torch.Generator) -> None:
        # That of nn.Linear would fill a matrix that is not wanted.
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = lora.scale, lora.dropout
        dtype = torch.promote_types(base.weight.dtype, torch.float32)
        bound = self.in_features**-0.5
        start = torch.empty(lora.rank, self.in_features).uniform_(
            -bound, bound, generator=generator
        )
        self.lora_a = nn.Parameter(start.to(base.weight.device, dtype))
        self.lora_b = nn.Parameter(
            torch.zeros(self.out_features, lora.rank, device=base.weight.device, dtype=dtype)
        )
        self.train(base.training)

    def forward(self, input: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        read = F.dropout(input, self.dropout, self.training)
        low = F.linear(read, self.lora_a.to(read.dtype)) * self.scale
        update = F.linear(low, self.lora_b.to(low.dtype))
        return F.linear(input, self.weight, self.bias) + update

    def merged(self) -> Tensor:
        """W + alpha / r * B A, in the precision of W: [O, I]."""
        update = self.scale * (self.lora_b.detach() @ self.lora_a.detach())
        return (self.weight.detach() + update).to(self.weight.dtype)


def add_lora(model: LanguageModule, lora: LoRA, *, seed: int = 0) -> ParameterCounts:
    """Adapt the targets in place; all else is frozen but what `lora.trained` names.

    What the model computes does not change until the first step of training. Names in its
    `state_dict` stay; each adapted layer gains `lora_a` [r, I] and `lora_b` [O, r].

    Raises:
        SpecError: a target or a name in `trained` that the model has not, a model that has an
            adapter already, a recurrent one. The model is as it was then.
    """
    layers, trained = adapted_layers(model, lora), trained_parameters(model, lora)
    generator = torch.Generator().manual_seed(seed)
    for name, base in layers.items():
        _replace(model, name, LoRALinear(base, lora, generator))
    return train_only(model, {*trained, *_thin(model)})


def merge_lora(model: LanguageModule) -> None:
    """Make every adapted layer a plain one again, in place, with the sum as its matrix.

    A model without an adapter stays as it is; one with becomes trainable in full again.
    """
    layers = _adapted(model)
    for name, layer in layers.items():
        plain = nn.Linear.__new__(nn.Linear)
        nn.Module.__init__(plain)
        plain.in_features, plain.out_features = layer.in_features, layer.out_features
        plain.weight, plain.bias = nn.Parameter(layer.merged()), layer.bias
        _replace(model, name, plain.train(layer.training))
    if layers:
        model.requires_grad_(True)


def merged_state(model: LanguageModule) -> dict[str, Tensor]:
    """The `state_dict` that `merge_lora` would leave; the model itself goes on as it is.

    These are the weights that the model's spec describes, with an adapter or without.
    """
    state = {name: weight.detach() for name, weight in model.state_dict().items()}
    for name, layer in _adapted(model).items():
        state[f"{name}.weight"] = layer.merged()
        del state[f"{name}.lora_a"], state[f"{name}.lora_b"]
    return state


def adapter_state(model: LanguageModule, lora: LoRA) -> dict[str, Tensor]:
    """What training has made: the thin matrices and whatever is trained in full, by name."""
    names = {*_thin(model), *trained_parameters(model, lora)}
    return {name: w.detach() for name, w in model.named_parameters() if name in names}


def adapted_layers(model: LanguageModule, lora: LoRA) -> dict[str, nn.Linear]:
    """The layers that `add_lora` would adapt, by path.

    Raises SpecError as `add_lora` does.
    """
    if isinstance(model, RecurrentModel):
        raise SpecError(
            "LoRA adapts linear layers, and the matrices of a recurrent model are inside PyTorch's "
            "own cells: freeze a part of it instead, or train all of it."
        )
    if _adapted(model):
        raise SpecError("this model has a LoRA adapter already: merge it first.")
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in blocks
    }
    known = _target_names(layers)
    chosen: set[str] = set()
    for target in lora.targets:
        found = {name for name in layers if _is_target(name, target)}
        if not found:
            raise SpecError(
                f'LoRA: no linear layer of this model is a target "{target}"; targets: '
                f"{', '.join(known)}.{did_you_mean(target, known)}"
            )
        chosen |= found
    return {name: layer for name, layer in layers.items() if name in chosen}


def trained_parameters(model: LanguageModule, lora: LoRA) -> list[str]:
    """The parameters that are trained in full beside the adapter.

    Raises SpecError for a name that the model has not.
    """
    modules: list[str] = []
    names = [name for name, _ in model.named_parameters() if not _is_thin(name)]
    for wanted in lora.trained:
        if wanted == _TASK_HEADS:
            modules += task_heads(model)
        elif any(inside(name, (wanted,)) for name in names):
            modules.append(wanted)
        else:
            paths = {path for name in names for path in _paths(name)} | {_TASK_HEADS}
            raise SpecError(
                f'LoRA: nothing that could be trained beside the adapter is called "{wanted}": '
                f"give the path of a module or a parameter, or {_TASK_HEADS}."
                f"{did_you_mean(wanted, sorted(paths))}"
            )
    return [name for name in names if inside(name, modules)]


def _is_target(name: str, target: str) -> bool:
    if target in _PARTS:
        return any(part in _PARTS[target] for part in name.split("."))
    return target == "all" or f".{name}".endswith(f".{target}")


def _target_names(layers: dict[str, nn.Linear]) -> list[str]:
    names = dict.fromkeys(name.rpartition(".")[2] for name in layers)
    parts = [part for part in _PARTS if any(_is_target(name, part) for name in layers)]
    return [*names, *parts, "all"]


def _paths(name: str) -> list[str]:
    """A parameter's name and those of all modules around it."""
    pieces = name.split(".")
    return [".".join(pieces[: end + 1]) for end in range(len(pieces))]


def _adapted(model: nn.Module) -> dict[str, LoRALinear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, LoRALinear)}


def _thin(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if _is_thin(name)]


def _is_thin(name: str) -> bool:
    return name.rpartition(".")[2] in ("lora_a", "lora_b")


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
