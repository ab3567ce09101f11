"""Tensor parallelism: the weights of every layer are sharded (Shoeybi et al. 2019).

Each process computes some attention heads, some hidden units of the feed-forward network and some
rows of the vocabulary. All parameters become `DTensor`s. Between modules there are plain tensors,
replicated on all processes. With sequence parallelism, the residual stream between modules is
instead sharded along the positions (Korthikanti et al. 2022).

The processes must have the same random seed, so that dropout of replicated tensors is the same on
all of them. For dropout of attention weights, each process uses the same mask for its own heads, or
another mask with sequence parallelism. In both cases, the masks differ from those that a single
process would use for all heads.

Shape letters: B batch, T positions, M selected positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from trivium.errors import RecipeError
from trivium.models import Transformer
from trivium.models.heads.vocabulary import VocabularyHead
from trivium.models.transformer import TransformerStack
from trivium.nn.blocks import Block, Residual
from trivium.nn.loss import VocabularyShard, linear_cross_entropy
from trivium.nn.part import PartModule
from trivium.nn.positions import PositionsModule


def parallelize(model: nn.Module, mesh: DeviceMesh, *, sequence_parallel: bool = False) -> None:
    """Apply tensor parallelism to a Transformer on a one-dimensional device mesh, in place.

    All processes must start with the same weights (this is not checked) and must get the same
    batches. Every process then computes the loss of the whole model, and the gradients of its own
    shards.

    Raises:
        RecipeError: the model is not a Transformer, or cannot be split among the processes.
    """
    if not isinstance(model, Transformer):
        raise RecipeError(
            f"parallel.tensor = {mesh.size()} is for a single Transformer, and what is trained "
            f"here is a {type(model).__name__}: set parallel.tensor = 1."
        )
    _check_sizes(model, mesh.size(), sequence_parallel=sequence_parallel)
    for stack in model.stacks:
        _parallelize_stack(stack, mesh, Shard(1) if sequence_parallel else Replicate())
    for table in (model.tokens, model.source_tokens):
        if table is not None:
            _distribute_module(table, _Activations(mesh), Shard(0))
    for head in model.heads.values():
        if isinstance(head, VocabularyHead):
            _distribute_parameters(head, mesh, Shard(0))
    model.linear_cross_entropy = vocabulary_parallel_cross_entropy
    for module in model.modules():  # all other modules: norms, positions, layers of heads
        if any(not isinstance(p, DTensor) for p in module.parameters(recurse=False)):
            _distribute_module(module, _Activations(mesh), Replicate())
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(partial(_redistribute_gradient, parameter.placements))  # type: ignore


def _redistribute_gradient(placements: tuple[Placement, ...], gradient: DTensor) -> DTensor:
    """Convert a gradient to the placements of its parameter.

    If a norm saw only some of the positions on each process, its gradients are summed. Gradients of
    embeddings are sharded.
    """
    return gradient.redistribute(placements=placements)


def _check_sizes(model: Transformer, num_processes: int, *, sequence_parallel: bool) -> None:
    """Raise RecipeError if tensor parallelism cannot split a model among the processes."""
    for stack in model.spec.stacks:
        if not stack.sharded_fields:
            positions = [each.positions for each in stack.attentions if each.positions]
            parts = [part for layer in stack.every_layer for part in (*layer.parts, layer.block)]
            kinds = sorted({part.kind for part in (*parts, *positions)})
            raise RecipeError(
                f"parallel.tensor = {num_processes} cannot divide a model that is made of "
                f"{', '.join(kinds)}: set parallel.tensor = 1."
            )
        if sequence_parallel and stack.num_layer_groups:
            raise RecipeError(
                "parallel.sequence = true needs layers with weights of their own; those of this "
                f"model share {stack.num_layer_groups} (num_layer_groups): set "
                "parallel.sequence = false."
            )
    if model.spec.mask_decoder_positions:
        raise RecipeError(
            f"parallel.tensor = {num_processes} cannot divide a model with a mask decoder "
            "(mask_decoder_positions): set parallel.tensor = 1."
        )
    for name, size in (each for stack in model.spec.stacks for each in stack.sharded_fields):
        if size % num_processes:
            divisors = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
            raise RecipeError(
                f"parallel.tensor = {num_processes} does not divide {name} = {size} of this model: "
                f"set parallel.tensor to one of {divisors}."
            )
    vocab_sizes = [model.spec.vocab_size, model.spec.input_vocab_size]
    if min(vocab_sizes) < num_processes**2:  # otherwise every process has rows
        raise RecipeError(
            f"parallel.tensor = {num_processes} is too much for a vocabulary of {min(vocab_sizes)} "
            f"entries, which must be at least {num_processes**2}: set a smaller parallel.tensor."
        )


def _parallelize_stack(stack: TransformerStack, mesh: DeviceMesh, placement: Placement) -> None:
    """Shard the attention heads and the hidden units of a stack among the processes.

    `placement` is the placement of the residual stream between the blocks.
    """
    stream = _Activations(mesh, placement)
    if isinstance(placement, Shard):
        stack.embedding.register_forward_hook(stream.shard_output)
    for table in stack.tables:  # tables of position biases, whose last axis is the heads
        _distribute_module(table, _Activations(mesh), Shard(1), outputs=Shard(1))
    for block in stack.layers:
        assert isinstance(block, Block)
        _parallelize_block(block, stream, is_last=block is stack.layers[-1])


def _parallelize_block(block: Block, stream: _Activations, *, is_last: bool) -> None:
    """Shard the sublayers of a block; `stream` is the placement of the residual stream.

    In the last block of a stack, the positions are gathered before the feed-forward network, since
    labelled positions are selected there.
    """
    last = block.mixer_residual
    _parallelize_sublayer(last, block.mixer, stream)
    if block.cross_attention is not None and block.cross_residual is not None:
        last = block.cross_residual
        _parallelize_sublayer(last, block.cross_attention, stream)
    if is_last and isinstance(stream.placement, Shard):  # labelled positions are selected here
        last.register_forward_hook(stream.gather_output)
        stream = _Activations(stream.mesh)
    if block.feed_forward is not None:
        _parallelize_sublayer(block.feed_forward_residual, block.feed_forward, stream)


def _parallelize_sublayer(residual: Residual, sublayer: PartModule, stream: _Activations) -> None:
    """Shard those linear layers of a sublayer that are named in `PartModule.parallel`.

    The norms of the residual block `residual` are changed to compute with DTensors. `stream` is the
    placement of the residual stream.
    """
    plan: dict[str, ParallelStyle] = {}
    for name, side in sublayer.parallel.items():
        if getattr(sublayer, name) is not None:  # some layers are optional, such as the gate
            row = RowwiseParallel(output_layouts=stream.placement)
            plan[name] = ColwiseParallel() if side == "column" else row
    parallelize_module(sublayer, stream.mesh, plan, src_data_rank=None)
    sublayer.register_forward_pre_hook(stream.gather_input)
    for part in sublayer.modules():
        if isinstance(part, PositionsModule):
            part.heads = _get_local_slice(part.attention.num_heads, stream.mesh)
    for norm in (residual.pre_norm, residual.post_sublayer_norm, residual.post_norm):
        _distribute_module(norm, stream, Replicate())


def _get_local_slice(size: int, mesh: DeviceMesh) -> slice:
    """Split `size` items among the processes, and return the slice of this process."""
    part = size // mesh.size()
    return slice(mesh.get_local_rank() * part, (mesh.get_local_rank() + 1) * part)


class _Activations:
    """The placement of activations between modules, and hooks that convert activations.

    The activations [B, T, D] are replicated or, with sequence parallelism, sharded along T.
    """

    def __init__(self, mesh: DeviceMesh, placement: Placement | None = None) -> None:
        self.mesh, self.placement = mesh, placement or Replicate()
        self.length = self.seed = 0

    def shard_output(self, module: nn.Module, inputs: object, x: Tensor) -> Tensor:
        """Forward hook that shards a module's output [B, T, D] along T.

        From here on, dropout differs between the processes.
        """
        self.length = x.shape[1]
        if module.training:
            self.seed = int(torch.randint(2**62, ()))
            torch.manual_seed(self.seed + 1 + self.mesh.get_local_rank())
        whole = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[self.placement]).to_local()

    def to_dtensor(self, x: Tensor) -> DTensor:
        """Return the DTensor whose local shard is `x`.

        The last process may have fewer positions than the others, or none.
        """
        shape = list(x.shape)
        if isinstance(self.placement, Shard):
            shape[self.placement.dim] = self.length
        return DTensor.from_local(
            x,
            self.mesh,
            [self.placement],
            run_check=False,
            shape=torch.Size(shape),
            stride=torch.empty(shape, device="meta").stride(),
        )

    def gather(self, x: Tensor) -> DTensor:
        """Gather a sharded activation on every process. Returns a replicated DTensor."""
        return self.to_dtensor(x).redistribute(placements=[Replicate()])

    def gather_input(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook that gathers the first input of a module."""
        return self.gather(inputs[0]), *inputs[1:]

    def gather_output(self, module: nn.Module, inputs: object, x: Tensor) -> Tensor:
        """Forward hook that gathers the output of a module.

        From here on, dropout is the same on every process.
        """
        if module.training:
            torch.manual_seed(self.seed)
        return self.gather(x).to_local()


def _distribute_module(
    module: nn.Module,
    inputs: _Activations,
    parameters: Placement,
    *,
    outputs: Placement | None = None,
) -> None:
    """Make a module compute with DTensors. Its first input and its output remain plain tensors.

    Args:
        module: the module, which is changed in place.
        inputs: the placement of the first input.
        parameters: the placement of the parameters.
        outputs: the placement of the output; None for the placement of the input.
    """

    def to_dtensor(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook that converts the first input of the module to a DTensor."""
        return inputs.to_dtensor(args[0]), *args[1:]

    def to_local(_: nn.Module, args: object, output: DTensor) -> Tensor:
        """Forward hook that converts the output of the module to a plain tensor."""
        return output.redistribute(placements=[outputs or inputs.placement]).to_local()

    if not isinstance(module, nn.Identity):
        _distribute_parameters(module, inputs.mesh, parameters)
        module.register_forward_pre_hook(to_dtensor)
        module.register_forward_hook(to_local)


def _distribute_parameters(module: nn.Module, mesh: DeviceMesh, placement: Placement) -> None:
    """Convert the module's own parameters to DTensors, but not those of its submodules.

    This needs no communication, since every process already has the same values.
    """
    for name, parameter in module.named_parameters(recurse=False):
        distributed = distribute_tensor(parameter, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(distributed, parameter.requires_grad))


def vocabulary_parallel_cross_entropy(
    features: Tensor, weight: DTensor, bias: DTensor | None, targets: Tensor, **options: Any
) -> Tensor:
    """Compute `linear_cross_entropy` if the vocabulary is sharded among the processes.

    For each row of logits, the processes exchange three numbers, but no logits (Shoeybi et al.
    2019, section 3).

    Args:
        features: the hidden states [M, D].
        weight: the sharded output embedding [V, D].
        bias: the sharded bias [V], or None.
        targets: the target ids [M].
        options: further arguments of `linear_cross_entropy`.
    """
    mesh = weight.device_mesh
    max_rows = -(-len(weight) // mesh.size())
    whole = DTensor.from_local(features, mesh, [Replicate()], run_check=False)

    def gather(x: Tensor) -> Tensor:
        """Gather the tensors of all processes. Returns them stacked along a new first dimension."""
        parts = [torch.empty_like(x) for _ in range(mesh.size())]
        dist.all_gather(parts, x, mesh.get_group())
        return torch.stack(parts)

    return linear_cross_entropy(
        whole.to_local(grad_placements=[Partial()]),  # summed over the processes
        weight.to_local(),
        None if bias is None else bias.to_local(),
        targets,
        shard=VocabularyShard(mesh.get_local_rank() * max_rows, max_rows, len(weight), gather),
        **options,
    )
