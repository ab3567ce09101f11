"""Context parallelism: several processes share the positions of a row (Dubey et al. 2024).

Each process computes a contiguous part of the positions with all weights. Only attention needs the
other positions: an all-gather collects the keys and values of the whole row in the forward pass,
and a reduce-scatter sums their gradients in the backward pass (section 3.3.2 of the paper). The
processes must get the same batches. Each process computes the losses of its own positions, so that
the loss and the gradients of a batch are sums over the processes.

Shape letters: B batch, T positions of a row, P positions of one process, S keys, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from trivium.models.base_model import Spec
from trivium.nn.mixers.attention import Attention
from trivium.nn.positions.rotary import Rotary
from trivium.nn.sequence_info import SequenceInfo
from trivium.objectives.objective import Objective
from trivium.objectives.tensor_batch import LossTerms, TensorBatch


@dataclass(frozen=True, kw_only=True)
class RowPart(SequenceInfo):
    """The metadata of the positions of one process.

    Args:
        visible: the metadata of the keys: all positions of the row, or if attention is causal those
            up to the last position of this process.
        mesh: the processes that share the row, in the order of their positions.
    """

    visible: SequenceInfo
    mesh: DeviceMesh

    @property
    def keys(self) -> SequenceInfo:
        """The metadata of the keys."""
        return self.visible

    @property
    def are_last_keys(self) -> bool:
        """Whether the tokens are the last of the keys: no position is repeated as padding."""
        end = self.columns.shape[1] * (self.mesh.get_local_rank() + 1)
        return end == self.visible.columns.shape[1]

    def gather_keys(self, x: Tensor) -> Tensor:
        """Gather keys or values from all processes: [B, K, P, H] -> [B, K, S, H]."""
        part = DTensor.from_local(x, self.mesh, [Shard(2)], run_check=False)
        whole = part.redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial()])[:, :, : self.visible.columns.shape[1]]


def find_unsupported(spec: Spec, objectives: Sequence[Objective] = ()) -> list[str]:
    """Return the names of what context parallelism does not support; empty if it supports all.

    Layers may read other positions only in softmax attention. The loss of a position may depend
    only on its own hidden state, as in `Objective.loss`.
    """
    names = [] if len(spec.stacks) == 1 else [f'models of kind "{spec.kind}", {spec.family}']
    names += ["a query stream"] if spec.query_stream else []
    for layer in (layer for stack in spec.stacks for layer in stack.every_layer):
        mixer, network = layer.mixer, layer.feed_forward
        positions = mixer.positions if isinstance(mixer, Attention) else None
        scaling = positions.scaling if isinstance(positions, Rotary) else None
        if type(mixer) is not Attention:
            names.append(f'mixers of kind "{mixer.kind}"')
        elif positions and positions.has_scores:
            names.append(f'positions of kind "{positions.kind}"')
        if scaling and scaling.needs_length:
            names.append(f'scaling of kind "{scaling.kind}"')
        if network and (network.has_aux_loss or network.reads_earlier_tokens):
            names.append(f'feed-forward networks of kind "{network.kind}"')
    refused = [one.kind for one in objectives if type(one).loss is not Objective.loss]
    return [*dict.fromkeys(names), *(f'objective.kind = "{kind}"' for kind in refused)]


def divide_rows(train_step: nn.Module, mesh: DeviceMesh) -> None:
    """Let every process of `mesh` compute the losses of a part of each row, in place.

    `train_step` is a `TrainStep` with a model that `find_unsupported` accepts. All processes get
    the same number of positions: those that have too few repeat the last position of the row,
    which then has no labels. A call of the model outside of the training step is not divided.
    """
    model: Any = train_step.get_submodule("model")
    compute_losses, [stack] = train_step.forward, model.stacks

    def forward(objective: Objective, batch: TensorBatch) -> LossTerms:
        """Return the loss terms of the positions of this process (see `TrainStep.forward`)."""
        ids = batch.inputs["input_ids"]
        length, part = ids.shape[1], -(-ids.shape[1] // mesh.size())
        start = part * mesh.get_local_rank()
        own = torch.arange(start, start + part, device=ids.device).clamp(max=length - 1)
        row, column = batch.label_positions // length, batch.label_positions % length
        is_own = (column >= start) & (column < start + part)
        batch = replace(
            batch,
            label_positions=(row * part + column - start)[is_own],
            targets=batch.targets[is_own],
        )
        if model.training:  # dropout differs between the processes
            torch.manual_seed(int(torch.randint(2**62, ())) + mesh.get_local_rank())

        def divide_ids(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            """Forward pre-hook of the token embeddings: [B, T] -> [B, P]."""
            return inputs[0][:, own]

        def divide_metadata(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            """Forward pre-hook of the stack, whose first input are token embeddings [B, P, E]."""
            tokens, sequence = inputs
            keys = slice(start + part if sequence.causal and sequence.prefix is None else length)
            visible = sequence.subset(keys)
            of_part = RowPart(**vars(sequence.subset(own, keys)), visible=visible, mesh=mesh)
            types = named["token_type_ids"]
            own_types = None if types is None else types[:, own]
            return (tokens, of_part), {**named, "token_type_ids": own_types}

        with (
            model.tokens.register_forward_pre_hook(divide_ids),
            stack.register_forward_pre_hook(divide_metadata, with_kwargs=True),
        ):
            return compute_losses(objective, batch)

    train_step.forward = forward
