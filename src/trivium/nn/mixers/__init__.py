"""Token mixers: the sublayer of a block in which tokens exchange information.

Shape letters: B batch, T positions, D width, N heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trivium.choice import Choice, import_submodules
from trivium.errors import SpecError
from trivium.nn.mask import mask_conditions
from trivium.nn.part import Part, PartModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State


class Mixer(Choice, Part):
    """Spec of a token mixer, such as attention or a state space model: [B, T, D] -> [B, T, D]."""

    supports_encoder: ClassVar[bool] = True
    """Whether the mixer can be bidirectional, as in an encoder."""
    supports_decoder: ClassVar[bool] = True
    """Whether the mixer can be causal and can decode step by step."""
    supports_packing: ClassVar[bool] = True
    """Whether the mixer keeps the documents of a packed row separate."""
    has_global_tokens: ClassVar[bool] = False
    """Whether the mixer has global tokens (Longformer). The task selects these tokens."""
    carries_state: ClassVar[bool] = False
    """Whether training can carry the mixer's state, which has a fixed size, to the next row. This
    excludes activation checkpointing of the block, which would update the state twice."""

    @property
    def cross(self) -> Any:
        """The `Attention` spec of the cross-attention in the same block.

        None if the mixer cannot be combined with cross-attention.
        """
        return None

    @property
    def sharded_fields(self) -> dict[str, int]:
        """The fields that tensor parallelism shards, such as `num_heads`, and their values.

        The number of tensor-parallel GPUs has to divide each value. The dict is empty if the mixer
        does not support tensor parallelism.
        """
        return {}

    def flops(self, attended: float) -> float:
        """Return the mixer's training FLOPs per token (forward and backward) besides linear layers.

        An example are the FLOPs of attention scores. The linear layers, with 6 FLOPs per weight,
        are counted by the model.

        Args:
            attended: the average number of positions that a token attends to if there is no
                attention pattern.
        """
        return 0.0

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        The input of the mixer and the activations of its norm are not included.

        Args:
            length: the number of tokens in a row.
            item: the number of bytes per element in the precision of the run. An element that is
                always float32 counts as `4 / item` elements.
            on_cpu: whether the model is trained on a CPU.
            dropout: whether the dropout rate is greater than 0.
        """
        raise NotImplementedError

    def build(self, d_model: int, *, dropout: float = 0.0, num_layers: int = 1) -> MixerModule:
        """Return the module, which maps [B, T, d_model] to [B, T, d_model].

        Args:
            d_model: the width of the hidden states.
            dropout: the dropout rate inside the mixer, for example of attention weights.
            num_layers: the number of layers in the stack. The limit on the memory for attention
                scores is divided among the layers.
        """
        raise NotImplementedError


_COLUMNS = dict.fromkeys(("query", "key", "value"), "column")
TP_PLAN: Mapping[str, str] = {**_COLUMNS, "output": "row"}
"""`PartModule.parallel` of attention: which projections are column-parallel or row-parallel."""


class MixerModule(PartModule):
    """Module of a token mixer.

    Args:
        part: the spec of the mixer.
        width: D, the width of the hidden states.
        dropout: the dropout rate inside the mixer, for example of attention weights.
        num_layers: the number of layers in the stack. The limit on the memory for attention scores
            is divided among the layers.
    """

    def __init__(self, part: Any, width: int, dropout: float = 0.0, num_layers: int = 1) -> None:
        super().__init__()
        self.part, self.width = part, width

    @property
    def table_key(self) -> Hashable:
        """The key that decides which layers share weights from `new_table`: those with equal keys.

        An example of such weights is T5's table of relative position biases.
        """
        return self.part

    def new_table(self) -> nn.Module | None:
        """Return the module whose weights several layers share; None if there are no such weights.

        An example is T5's table of relative position biases. The stack calls this method once for
        all layers with the same `table_key`.
        """
        return None

    def prepare(
        self, sequence: SequenceInfo, state: State | None = None, table: nn.Module | None = None
    ) -> Any:
        """Compute what all layers with the same spec share in a forward pass, such as the mask.

        The stack calls `prepare` once per forward pass, on the first of these layers and outside
        of its block. Therefore `prepare` may use only the weights in `table`, not those of the
        layer. The result is passed to `forward` as `prepared`.

        Args:
            sequence: the metadata of the forward pass.
            state: the cached state of the first of these layers; None: no cache.
            table: the module from `new_table`; None: the layers share no weights.
        """
        return None

    def check_mask_conditions(self, sequence: SequenceInfo, *, supported: set[str]) -> None:
        """Raise SpecError if the attention mask has a condition that is not in `supported`.

        The conditions are named as in `mask_conditions`, for example "padding".
        """
        if others := sorted(mask_conditions(sequence, sequence) - supported):
            raise SpecError(
                f"{self.part.kind} cannot keep tokens from each other by {', '.join(others)}, "
                f"only by {', '.join(sorted(supported))}."
            )

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty cached state with `slots` slots of at most `length` tokens each.

        The state has the device and dtype of `like`. States that are sums over many tokens have at
        least float32.
        """
        raise NotImplementedError

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: State | None = None, prepared: Any = None
    ) -> Tensor:
        """Return the output of the mixer: [B, T, D] -> [B, T, D].

        Args:
            x: the hidden states [B, T, D].
            sequence: the metadata of the forward pass.
            state: the cached state of the earlier tokens, which is updated in place; None: no
                cache.
            prepared: the result of `prepare`; None: the mixer calls `prepare` itself.
        """
        raise NotImplementedError


class ProjectingMixer(MixerModule):
    """Base class of mixers with query, key, value and output projections that have biases."""

    parallel: ClassVar[Mapping[str, str]] = TP_PLAN

    def __init__(self, part: Any, width: int, dropout: float = 0.0, num_layers: int = 1) -> None:
        super().__init__(part, width)
        heads = part.num_heads * part.head_dim
        self.query = nn.Linear(width, heads)
        self.key = nn.Linear(width, heads)
        self.value = nn.Linear(width, heads)
        self.output = nn.Linear(heads, width)

    def split_heads(self, *projections: Tensor) -> list[Tensor]:
        """Split each projection into heads: [B, T, N * H] -> [B, N, T, H]."""
        heads = self.part.num_heads
        return [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in projections]


class RecurrentMixer(MixerModule):
    """Base class of recurrent mixers, which read tokens left to right with a fixed-size state."""

    def prepare(
        self, sequence: SequenceInfo, state: State | None = None, table: nn.Module | None = None
    ) -> None:
        """Raise SpecError if the forward pass is not causal, as in an encoder.

        Also raises SpecError for mask conditions other than causality, documents and padding.
        Nothing is computed: layers with a recurrent mixer share no values.
        """
        self.check_mask_conditions(sequence, supported={"causal", "documents", "padding"})
        if not sequence.causal:
            raise SpecError(f"{self.part.kind} is causal only: it cannot be in an encoder.")


def recompute(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> tuple[Any, ...]:
    """Call a function with activation checkpointing: backward recomputes its activations.

    The function must be deterministic because the state of the random generator is not kept.
    Without gradients the function is just called. Returns the result of the function.
    """
    if torch.is_grad_enabled():
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return function(*arguments)


import_submodules(__name__, __path__)
