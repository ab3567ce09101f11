"""Kinds of mixers: how a block lets tokens see each other."""

from __future__ import annotations

from typing import Any, ClassVar

from trivium.choice import Choice, import_members
from trivium.spec.part import Part


class Mixer(Choice, Part):
    """What mixes the tokens of a text, [B, T, D] -> [B, T, D]; its module is in `nn/mixers`."""

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

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return how many numbers per token training keeps between forward and backward pass.

        The block counts the input and the norm of the mixer. `length`: tokens of a row. `item`:
        bytes of a number in the precision of the run; a tensor that stays in float32 in any
        precision counts as `4 / item` numbers.
        """
        raise NotImplementedError


import_members(__name__, __path__)
