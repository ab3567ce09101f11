"""Access to the whole model of a run, even if each process has only a shard of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.train import hardware
from trivium.train.distributed import Parallel
from trivium.train.optimizers.muon import gather_full_tensor


@dataclass
class WholeModel:
    """The module that this process trains, and the whole model for metrics and saving.

    Args:
        module: the module to train; for ELECTRA, it contains both models.
        lm: the model that is saved; its module is a part of `module`.
        models: a function that takes `module` and returns the models that a run saves, by the name
            of their folder. The folder name of `lm` is "".
        parallel: the processes of the run.
        is_sharded: whether each process has only a shard of the weights.
    """

    module: nn.Module
    lm: LanguageModel
    models: Callable[[nn.Module], dict[str, LanguageModule]]
    parallel: Parallel
    is_sharded: bool

    def __post_init__(self) -> None:
        self.whole = self.module
        """The whole module. If `is_sharded`, a copy; `gather` loads its weights on rank 0."""
        if self.is_sharded:
            memo: dict[int, Any] = {
                id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad)
                for one in self.module.parameters()
            }
            self.whole = copy.deepcopy(self.module, memo)
            self.lm.module = self.models(self.whole)[""]

    def gather(self, device: torch.device) -> None:
        """Gather the weights of a sharded model on the main process. All processes must call it.

        The weights are gathered one at a time into host memory, since a GPU may not have enough
        memory for all of them. The model is then moved to the GPU only if two copies of it fit
        there: the last step of fine-tuning makes a second copy. Does nothing if the model is not
        sharded.
        """
        if not self.is_sharded:
            return
        weights = {}
        for name, weight in self.module.state_dict().items():
            weight = gather_full_tensor(weight)
            if self.parallel.is_main:
                weights[name] = weight.cpu()
        torch.cuda.empty_cache()
        if self.parallel.is_main:
            self.whole.load_state_dict(weights, assign=True)
            size = sum(weight.nbytes for weight in weights.values())
            if 2 * size < hardware.available_memory(device):
                self.whole.to(device)

    def move_to_host(self) -> None:
        """Move a gathered model from the GPU to the host, to free GPU memory for training."""
        if self.is_sharded:
            self.whole.cpu()
