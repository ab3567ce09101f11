"""Kinds of mixers: how a block lets tokens see each other.

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
    """What mixes the tokens of a text, [B, T, D] -> [B, T, D]."""

    encodes: ClassVar[bool] = True
    """Whether it can read both sides of a token, as an encoder does."""
    decodes: ClassVar[bool] = True
    """Whether it can read the left side alone, step by step."""
    packs: ClassVar[bool] = True
    """Whether it keeps the documents of a packed row apart."""
    has_global_tokens: ClassVar[bool] = False
    """Whether some tokens see all others and are seen by them, as a task says."""
    carries: ClassVar[bool] = False
    """Whether what it keeps of a text has a size of its own and goes on from row to row in
    training: its module writes it detached. Activation checkpointing would write it twice."""

    @property
    def cross(self) -> Any:
        """The `Attention` to an encoder's output beside it; None where it has none."""
        return None

    @property
    def divided(self) -> dict[str, int]:
        """Sizes that tensor parallelism divides, by the names of their fields."""
        return {}

    def flops(self, attended: float) -> float:
        """Of a token's forward and backward pass, beside 6 for each weight of a matrix.

        `attended` are the positions that it could attend to.
        """
        return 0.0

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return how many numbers per token training keeps between forward and backward pass.

        The block counts the input and the norm of the mixer. `length`: tokens of a row. `item`:
        bytes of a number in the precision of the run; a tensor that stays in float32 in any
        precision counts as `4 / item` numbers.
        """
        raise NotImplementedError

    def build(self, d_model: int, *, dropout: float = 0.0, num_layers: int = 1) -> MixerModule:
        """Return the module, which maps [B, T, d_model] to [B, T, d_model].

        Args:
            d_model: width of the vectors.
            dropout: of attention weights or the like, while training.
            num_layers: of the stack, for mixers that keep much for the backward pass.
        """
        raise NotImplementedError


PROJECTIONS: Mapping[str, str] = {
    "query": "column",
    "key": "column",
    "value": "column",
    "output": "row",
}
"""`PartModule.parallel` of a mixer that has heads."""


class MixerModule(PartModule):
    """What mixes the tokens of a text: built of a part, a width and the dropout of its stack.

    Args:
        part: the mixer.
        width: D.
        dropout: of attention weights or the like, while training.
        num_layers: of the stack, for mixers that keep much for backward.
    """

    def __init__(self, part: Any, width: int, dropout: float = 0.0, num_layers: int = 1) -> None:
        super().__init__()
        self.part, self.width = part, width

    @property
    def table_key(self) -> Hashable:
        """Layers whose keys are equal share one table."""
        return self.part

    def new_table(self) -> nn.Module | None:
        """Weights that all layers share, which the stack holds, such as T5's bias."""
        return None

    def prepare(
        self, sequence: SequenceInfo, state: State | None = None, table: nn.Module | None = None
    ) -> Any:
        """What layers with equal parts share in a pass, made outside of blocks.

        It reads no weights but those of the table. `state` is that of the first of the layers.
        """
        return None

    def refuse_limits(self, sequence: SequenceInfo, *, but: set[str]) -> None:
        """Raise SpecError if the attention mask has conditions other than `but`."""
        if others := sorted(mask_conditions(sequence, sequence) - but):
            raise SpecError(
                f"{self.part.kind} cannot keep tokens from each other by {', '.join(others)}, "
                f"only by {', '.join(sorted(but))}."
            )

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """What is kept of texts of at most `length` tokens, as precise as `like`."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: State | None = None, prepared: Any = None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; `state`, of earlier tokens, is extended in place.

        Without what `prepare` gives a mixer prepares for itself.
        """
        raise NotImplementedError


class ProjectingMixer(MixerModule):
    """A mixer whose heads read projections with biases: queries, keys and values."""

    parallel: ClassVar[Mapping[str, str]] = PROJECTIONS

    def __init__(self, part: Any, width: int, dropout: float = 0.0, num_layers: int = 1) -> None:
        super().__init__(part, width)
        heads = part.num_heads * part.head_dim
        self.query = nn.Linear(width, heads)
        self.key = nn.Linear(width, heads)
        self.value = nn.Linear(width, heads)
        self.output = nn.Linear(heads, width)

    def split_heads(self, *projections: Tensor) -> list[Tensor]:
        """Split projections by heads: [B, T, N * H] each -> [B, N, T, H] each."""
        heads = self.part.num_heads
        return [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in projections]


class LeftToRightMixer(MixerModule):
    """A mixer that reads a text from left to right, with a state of a fixed size."""

    def prepare(
        self, sequence: SequenceInfo, state: State | None = None, table: nn.Module | None = None
    ) -> None:
        """Raise SpecError for a pass that does not read from left to right."""
        self.refuse_limits(sequence, but={"causal", "documents", "padding"})
        if not sequence.causal:
            raise SpecError(
                f"{self.part.kind} reads from left to right: it cannot be in an encoder."
            )


def recompute(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> tuple[Any, ...]:
    """Return the result of a function without randomness; backward computes it again."""
    if torch.is_grad_enabled():
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return function(*arguments)


import_members(__name__, __path__)
