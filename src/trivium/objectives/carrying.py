"""Objectives that may read a text row by row, with what the model keeps of the rows before."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from trivium.errors import RecipeError
from trivium.objectives.base import Objective
from trivium.spec import Head, Spec


class Carrying(Objective):
    """With `carry_state` each row goes on with the row before it, as `Causal` explains."""

    carry_state: bool = Field(
        False,
        description="rows are read in order, each with the state that the row before has left: "
        "for RNNs that read one way, and others whose layers keep a state of a fixed size",
    )

    @property
    def carries_state(self) -> bool:
        """See `Objective.carries_state`."""
        return self.carry_state

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """See `Objective.heads`; `carry_state` also needs a model that keeps a state."""
        heads = super().heads(spec, labels)
        if self.carry_state and not spec.carries:
            raise RecipeError(
                "objective.carry_state = true needs a model whose state goes on from row to row, "
                "such as lstm-mini, transformer-xl-mini or xlnet-mini; layers of this model keep "
                "whole texts or read a few tokens: leave it out."
            )
        return heads

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """See `Objective.check_rows`. With `carry_state` every row continues another row."""
        super().check_rows(packing, separate_documents, is_mixed=is_mixed)
        keys = {
            "[[mix]]": is_mixed,
            "data.separate_documents": separate_documents,
            'data.packing = "truncate"': packing == "truncate",
        }
        apart = " and ".join(key for key, is_set in keys.items() if is_set)
        if self.carry_state and apart:
            raise RecipeError(
                "objective.carry_state = true reads one text from its beginning to its end: leave "
                f"{apart} out."
            )
