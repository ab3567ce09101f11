"""Loads the weights with which training starts, one part of the model at a time.

A model that is sharded among processes is built on the meta device, where parameters have shapes
but no values. After the model is sharded, every process computes or reads the weights of one part
of the model (a block, or a module outside of the blocks), keeps its own shards of these weights,
and frees the part. The peak host memory of a process is therefore its shard of the model plus the
largest part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trivium.interop.label_scale import CLASSIFIER, Scale, change_label_scale
from trivium.lazy_tensors import combine
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.models.initialization import SeededInitialization
from trivium.text import Tokenizer


@dataclass(frozen=True)
class BaseWeights:
    """The weights that are copied from a base model.

    Args:
        tensors: the weights of the base model by name. A weight is looked up when it is needed,
            and not kept.
        copied: the names of the weights that are copied.
        incomplete: the names of those copied weights that have rows for new labels, too.
        num_label_rows: the number of rows that are copied of an incomplete weight.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    copied: Collection[str] = frozenset()
    incomplete: Collection[str] = frozenset()
    num_label_rows: int = 0

    def covers(self, names: Collection[str]) -> bool:
        """Return whether these weights are copied completely, so that none of them is random."""
        return all(name in self.copied and name not in self.incomplete for name in names)

    def get(self, name: str, initial: Mapping[str, Tensor]) -> Tensor:
        """Return the weight called `name`: the copied one, or that in `initial` if none is copied.

        If the copied weight is incomplete, the other rows are those of the initial weight.
        """
        if name not in self.copied:
            return initial[name]
        if name not in self.incomplete:
            return self.tensors[name]
        rows = self.num_label_rows
        return torch.cat([self.tensors[name][:rows], initial[name][rows:]])

    def with_label_scale(self, before: Scale, after: Scale) -> tuple[BaseWeights, Scale]:
        """Change the scale of regression labels (see `change_label_scale`).

        Returns the weights with an adjusted head, and the new scale.
        """
        names = [name for name in self.copied if name.startswith(f"{CLASSIFIER}.")]
        head = {name: self.tensors[name].float() for name in names}
        changed, scale = change_label_scale(head, before, after)
        return replace(self, tensors=combine(self.tensors, changed)), scale


@dataclass(frozen=True)
class StartingWeights:
    """The weights with which the training of a model starts: random, or those of a base model.

    Args:
        spec: the specification of the model.
        seed: the seed of the random initialization.
        tokenizer: the tokenizer of the model.
        base: the weights that are copied from a base model. All other weights are random.
    """

    spec: Spec
    seed: int
    tokenizer: Tokenizer
    base: BaseWeights = BaseWeights()

    @torch.no_grad()
    def load_into(self, module: LanguageModule, device: torch.device) -> None:
        """Move a model to a device, and set its weights that are on the meta device.

        Other weights, such as those of a LoRA adapter, keep their values. If weights are sharded
        (`DTensor`), each process sets only its own shards, without communication.
        """
        empty = {name for name, weight in module.state_dict().items() if weight.is_meta}
        # `nn.Module.to_empty` would also discard the values of the other weights.
        module._apply(lambda x: torch.empty_like(x, device=device) if x.is_meta else x.to(device))
        targets = module.state_dict()
        initialization = SeededInitialization(build(self.spec, device="meta"), self.seed)
        for path, part in initialization.parts:
            names = [name for name in part.state_dict(prefix=_prefix(path)) if name in empty]
            initial: Mapping[str, Tensor] = {}
            if not self.base.covers(names):
                initial = _initialize(initialization, path, part)
            for name in names:
                _copy_shard(targets[name], self.base.get(name, initial))
            part.to("meta")
        module.set_character_ids(self.tokenizer)

    @torch.no_grad()
    def read(self, name: str) -> Tensor:
        """Return the weight called `name`. If it is random, its part of the model is initialized.

        Raises:
            KeyError: the model has no weight with this name.
        """
        if self.base.covers([name]):
            return self.base.get(name, {})
        initialization = SeededInitialization(build(self.spec, device="meta"), self.seed)
        for path, part in initialization.parts:
            if name in part.state_dict(prefix=_prefix(path)):
                return self.base.get(name, _initialize(initialization, path, part))
        raise KeyError(name)

    def with_weights(self, weights: Mapping[str, Tensor]) -> StartingWeights:
        """Return a copy in which the weights with the names in `weights` are copied from there."""
        base = replace(
            self.base,
            tensors=combine(self.base.tensors, weights),
            copied={*self.base.copied, *weights},
            incomplete={*self.base.incomplete} - weights.keys(),
        )
        return replace(self, base=base)


@dataclass(frozen=True)
class PartsStartingWeights:
    """The weights with which the training of several models in one module starts (ELECTRA).

    Args:
        parts: the weights of each model, by its path in the module.
    """

    parts: Mapping[str, StartingWeights]

    def load_into(self, module: nn.Module, device: torch.device) -> None:
        """Move all models to a device, and set their weights (see `StartingWeights.load_into`)."""
        for path, weights in self.parts.items():
            weights.load_into(cast(LanguageModule, module.get_submodule(path)), device)


def _prefix(path: str) -> str:
    """Return the prefix of the names of the weights of the module at a path."""
    return f"{path}." if path else ""


def _initialize(
    initialization: SeededInitialization, path: str, part: nn.Module
) -> Mapping[str, Tensor]:
    """Initialize a part of a model on the CPU. Returns its weights by their names in the model."""
    part.to_empty(device="cpu")
    initialization.initialize(path, part)
    return part.state_dict(prefix=_prefix(path))


def _copy_shard(target: Tensor, whole: Tensor) -> None:
    """Copy a whole weight to `target`, or its local shard if `target` is a sharded `DTensor`."""
    if isinstance(target, DTensor):
        # Without a source rank, every process takes its shard of its own copy.
        shard = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
        target.to_local().copy_(shard.to_local())
    else:
        target.copy_(whole)
