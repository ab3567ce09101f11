"""Token mixers: the sublayer of a block in which tokens exchange information.

Shape letters: B batch, T positions, D width, N heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trivium.choice import Choice, import_members
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
    """Whether the mixer has global tokens, which the task selects (Longformer)."""
    carries_state: ClassVar[bool] = False
    """Whether training can carry the state, of fixed size, from row to row. The state is written
    detached. With activation checkpointing of the block the state would be written twice."""

    @property
    def cross(self) -> Any:
        """The `Attention` spec of the cross-attention in the same block; None: not supported."""
        return None

    @property
    def tp_fields(self) -> dict[str, int]:
        """The field names and sizes that tensor parallelism divides; empty: not divisible."""
        return {}

    def flops(self, attended: float) -> float:
        """Return the FLOPs per token, forward and backward, except 6 per weight of a matrix.

        `attended`: the average number of positions that a token attends to without a pattern.
        """
        return 0.0

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the activation numel: the numbers per token that training keeps for backward.

        The input and the norm of the mixer are counted by the block instead. `length`: the number
        of tokens in a row. `item`: the bytes per number in the precision of the run; an element of
        a tensor that is always float32 counts as `4 / item` numbers.
        """
        raise NotImplementedError

    def build(self, d_model: int, *, dropout: float = 0.0, num_layers: int = 1) -> MixerModule:
        """Return the module, which maps [B, T, d_model] to [B, T, d_model].

        Args:
            d_model: the width of the hidden states.
            dropout: the dropout rate inside the mixer, for example of attention weights.
            num_layers: the number of layers in the stack; the layers share a memory limit.
        """
        raise NotImplementedError


TP_PLAN: Mapping[str, str] = {
    "query": "column",
    "key": "column",
    "value": "column",
    "output": "row",
}
"""`PartModule.parallel` for a mixer with heads: how tensor parallelism divides projections."""


class MixerModule(PartModule):
    """Module of a token mixer.

    Args:
        part: the spec of the mixer.
        width: D.
        dropout: the dropout rate inside the mixer, for example of attention weights.
        num_layers: the number of layers in the stack; the layers share a memory limit.
    """

    def __init__(self, part: Any, width: int, dropout: float = 0.0, num_layers: int = 1) -> None:
        super().__init__()
        self.part, self.width = part, width

    @property
    def table_key(self) -> Hashable:
        """The key of the mixer's shared table: layers with equal keys share one table."""
        return self.part

    def new_table(self) -> nn.Module | None:
        """Return the weights that the stack shares among layers (such as T5's bias), or None."""
        return None

    def prepare(
        self, sequence: SequenceInfo, state: State | None = None, table: nn.Module | None = None
    ) -> Any:
        """Compute the values that layers with equal specs share in a pass.

        The stack calls `prepare` outside of its blocks, so `prepare` may read no weights except
        those of `table`. `state` is the state of the first layer.
        """
        return None

    def check_mask_conditions(self, sequence: SequenceInfo, *, supported: set[str]) -> None:
        """Raise SpecError if the attention mask has conditions other than `supported`."""
        if others := sorted(mask_conditions(sequence, sequence) - supported):
            raise SpecError(
                f"{self.part.kind} cannot keep tokens from each other by {', '.join(others)}, "
                f"only by {', '.join(sorted(supported))}."
            )

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty state for texts of at most `length` tokens, on the device of `like`.

        The dtype is that of `like`, or float32 for sums if that is wider.
        """
        raise NotImplementedError

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: State | None = None, prepared: Any = None
    ) -> Tensor:
        """Return the mixed hidden states: [B, T, D] -> [B, T, D]. Updates `state` in place.

        `state` is the state of the earlier tokens. If `prepared` is None, the mixer calls `prepare`
        itself.
        """
        raise NotImplementedError


class ProjectingMixer(MixerModule):
    """Mixer with query, key, value and output projections, all of them with biases."""

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
    """Recurrent mixer: processes a text from left to right with a state of fixed size."""

    def prepare(
        self, sequence: SequenceInfo, state: State | None = None, table: nn.Module | None = None
    ) -> None:
        """Raise SpecError for a pass that is not causal or has unsupported mask conditions."""
        self.check_mask_conditions(sequence, supported={"causal", "documents", "padding"})
        if not sequence.causal:
            raise SpecError(
                f"{self.part.kind} reads from left to right: it cannot be in an encoder."
            )


def recompute(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> tuple[Any, ...]:
    """Call a deterministic function with activation checkpointing and return its result."""
    if torch.is_grad_enabled():
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return function(*arguments)


import_members(__name__, __path__)
