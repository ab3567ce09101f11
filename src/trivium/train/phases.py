"""Phases: parts of a run with different row lengths, batch sizes or learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, PositiveInt, model_validator

from trivium.config import Config


class PhaseData(Config):
    """The keys of `[data]` that a phase can override."""

    length: PositiveInt | None = Field(None, description="tokens per row")


class PhaseTrain(Config):
    """The keys of `[train]` that a phase can override."""

    batch_tokens: PositiveInt | None = Field(None, description="tokens per step")
    clip: float | None = Field(None, ge=0, description="maximum norm of the gradient; 0: no limit")


class PhaseOptimizer(Config):
    """The keys of `[optimizer]` that a phase can override."""

    lr: float | None = Field(
        None, gt=0, description="peak learning rate, which the schedule multiplies"
    )
    weight_decay: float | None = Field(None, ge=0, description="decoupled weight decay of matrices")


class PhaseConfig(Config):
    """A phase of a run, which overrides some keys of the recipe.

    Every phase except the last has a table `[[phases]]`. The last phase uses the values of the
    recipe itself. For example, BERT reads rows of 128 tokens for 90 % of its steps, and then rows
    of 512:

    ```toml
    [model]
    preset = "bert-base"

    [data]
    length = 512

    [train]
    steps = 1_000_000
    batch_tokens = 131_072

    [[phases]]
    until = 0.9
    data.length = 128
    train.batch_tokens = 32_768
    ```

    A phase with the same row length as the previous phase continues after the last row of that
    phase. A phase with another row length starts a new row order. The learning rate schedule spans
    the whole budget. Validation always uses the rows of the last phase.
    """

    until: float = Field(gt=0, lt=1, description="fraction of the budget at which the phase ends")
    data: PhaseData | None = Field(None, description="length: tokens per row")
    train: PhaseTrain | None = Field(
        None, description="batch_tokens: tokens per step; clip: maximum norm of the gradient"
    )
    optimizer: PhaseOptimizer | None = Field(
        None,
        description="lr: peak learning rate, which the schedule multiplies; weight_decay: weight "
        "decay of matrices",
    )
    objective: dict[str, Any] | None = Field(
        None, description="fields of the objective, except its kind"
    )
    mix: dict[str, float] | None = Field(
        None, description="weight of each source in [[mix]], by name"
    )

    @property
    def row_keys(self) -> list[str]:
        """The keys set in this phase that affect the row length or the number of rows per step."""
        length = self.data is not None and self.data.length is not None
        batch = self.train is not None and self.train.batch_tokens is not None
        return ["data.length"] * length + ["train.batch_tokens"] * batch

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        """Raise ValueError if the phase overrides nothing, or overrides the kind of objective."""
        if "kind" in (self.objective or {}):
            raise ValueError("a phase changes fields of the objective, not its kind")
        if not any(value for name, value in self.to_tree().items() if name != "until"):
            raise ValueError("a phase needs a key that it changes, such as data.length = 128")
        return self


def phase_end_steps(
    phase_ends: Sequence[float],
    tokens_per_step: Sequence[float],
    *,
    steps: int | None = None,
    tokens: float | None = None,
) -> list[int]:
    """Return the number of steps completed at the end of each phase, including the last phase.

    >>> phase_end_steps([0.9], [32_768, 131_072], steps=1_000_000)
    [900000, 1000000]
    >>> phase_end_steps([0.5], [100, 400], tokens=1_600)
    [8, 10]

    Args:
        phase_ends: for each phase except the last, the fraction of the budget at which it ends.
        tokens_per_step: the number of tokens per step in each phase, including the last.
        steps: the budget in steps.
        tokens: the budget in tokens, if the budget is not in steps.
    """
    fractions = [*phase_ends, 1.0]
    if steps is not None:
        return [max(1, round(fraction * steps)) for fraction in fractions]
    assert tokens is not None
    borders, step, done = [], 0, 0.0
    for fraction, size in zip(fractions, tokens_per_step, strict=True):
        count = max(0, math.ceil((fraction * tokens - done) / size - 1e-9))
        step, done = step + count, done + count * size
        borders.append(step)
    return borders
