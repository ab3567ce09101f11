"""What a preset is: a spec with its name's paper."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.spec import Spec


@dataclass(frozen=True)
class Preset:
    """A named size of the literature.

    Args:
        spec: the model, initialised as published.
        paper: where it was published.
        context: longest training input in tokens; None where no length is published.
        tokens: seen in training, repetitions counted, where published.
        lr: the peak learning rate, where published.
        batch: tokens of a step, where published; the last, where it grows.
    """

    spec: Spec
    paper: str
    context: int | None
    tokens: float | None = None
    lr: float | None = None
    batch: float | None = None
