"""Where training starts: the weights a spec's `Initialization` draws from a seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.models.heads import MLMHead
from trivium.models.lookup import look_things_up
from trivium.models.offsets import attend_to_offsets

if TYPE_CHECKING:
    from trivium.models.transformer import Transformer


@torch.no_grad()
def initialize(model: Transformer, seed: int) -> None:
    """Draw the starting weights of a spec from a seed, the same on every device."""
    start, generator = model.spec.initialization, torch.Generator().manual_seed(seed)
    norms = {id(w) for m in model.modules() if _is_norm(m) for w in m.parameters(recurse=False)}
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.fill_(1.0 if id(weight) in norms and name.endswith("weight") else 0.0)
        elif isinstance(start, spec.Xavier) and not _is_embedding(name):
            bound = math.sqrt(6.0 / sum(weight.shape))
            weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
        else:
            std = _deviation(name, weight, model.spec)
            weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))
    if isinstance(start, spec.Normal) and start.branches == "zero":
        for head in model.heads.values():
            if isinstance(head, MLMHead) and not isinstance(head.dense, nn.Identity):
                head.dense.start_as_identity()
    if isinstance(start, spec.Normal) and start.attention == "offsets":
        attend_to_offsets(model, start.embedding_std)
    if isinstance(start, spec.Normal | spec.FanIn) and start.attention == "lookup":
        look_things_up(model, start.embedding_std if isinstance(start, spec.Normal) else 1.0)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | nn.RMSNorm)


def _is_embedding(name: str) -> bool:
    tables = ("tokens", "source_tokens", "positions", "token_types")
    return name.removesuffix(".weight").rpartition(".")[2] in tables


def _deviation(name: str, weight: Tensor, model: spec.ModelSpec) -> float:
    """The standard deviation a matrix or table is drawn with."""
    match model.initialization:
        case spec.Normal() as start:
            if _is_embedding(name):
                return start.embedding_std
            if not name.endswith(("attention.output.weight", "feed_forward.down.weight")):
                return start.std
            layers = sum(stack.num_layers for stack in model.stacks)
            scaled = start.std / (2 * layers) ** 0.5
            return {"full": start.std, "scaled": scaled, "zero": 0.0}[start.branches]
        case spec.Xavier():
            return model.d_model**-0.5
        case spec.FanIn():
            if _is_embedding(name):
                return 1.0
            if name.endswith("bias.weight"):  # of distances
                return model.d_model**-0.5
            inputs = weight.shape[1]
            if name.endswith("query.weight"):
                inputs *= model.stacks[-1].attention_of(0).head_dim
            return inputs**-0.5
