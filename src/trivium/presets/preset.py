"""What a preset is: a spec with its name's paper."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.spec import AnySpec


@dataclass(frozen=True)
class Preset:
    """A named size of the literature.

    Args:
        spec: the model, initialised as published.
        paper: where it was published.
        context: longest training input in tokens; None where no length is published.
        training_tokens: tokens seen in training, repetitions counted, where published.
        learning_rate: the peak, where published.
        batch_tokens: tokens of a step, where published; the last, where it grows.
    """

    spec: AnySpec
    paper: str
    context: int | None
    training_tokens: float | None = None
    learning_rate: float | None = None
    batch_tokens: float | None = None
