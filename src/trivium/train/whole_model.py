"""The model of a run, of which a process may hold a part."""

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
from trivium.train.optimizers.muon import full_tensor


@dataclass
class WholeModel:
    """What this process trains, and all of it, which metrics are computed with and which is saved.

    Args:
        module: what is trained; of ELECTRA both models.
        lm: the model that is saved, its module a part of `module`.
        models: what a run saves of a module, by folder; that of `lm` is "".
        parallel: the processes.
        divided: each of them holds a part of the weights; else it holds all.
    """

    module: nn.Module
    lm: LanguageModel
    models: Callable[[nn.Module], dict[str, LanguageModule]]
    parallel: Parallel
    divided: bool

    def __post_init__(self) -> None:
        self.whole = self.module
        """Of a divided one a copy, which `gather` fills on the first process."""
        if self.divided:
            memo: dict[int, Any] = {
                id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad)
                for one in self.module.parameters()
            }
            self.whole = copy.deepcopy(self.module, memo)
            self.lm.module = self.models(self.whole)[""]

    def gather(self, device: torch.device) -> None:
        """Fill a divided model on the first process; all take part.

        It is in the memory of the host, where weights come one after another, since a GPU may have
        no space for all; and goes to a GPU where that has space for it, and for another at the end
        of fine-tuning.
        """
        if not self.divided:
            return
        weights = {}
        for name, weight in self.module.state_dict().items():
            weight = full_tensor(weight)
            if self.parallel.is_main:
                weights[name] = weight.cpu()
        torch.cuda.empty_cache()
        if self.parallel.is_main:
            self.whole.load_state_dict(weights, assign=True)
            size = sum(weight.nbytes for weight in weights.values())
            if 2 * size < hardware.free_memory(device):
                self.whole.to(device)

    def release(self) -> None:
        """Free the GPU of a model that was gathered: training needs its memory."""
        if self.divided:
            self.whole.cpu()
