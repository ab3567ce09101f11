"""What a named size is: its description and what its paper says about it."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.spec import AnySpec


@dataclass(frozen=True)
class Training:
    """How a paper trained a size.

    Args:
        tokens: seen in training, repetitions counted.
        lr: highest learning rate.
        batch_tokens: tokens a step.
    """

    tokens: float
    lr: float | None = None
    batch_tokens: float | None = None


@dataclass(frozen=True)
class Preset:
    """A named size.

    Args:
        spec: its description.
        paper: where it was published.
        context: longest input it was trained with, in tokens; None where no length is published.
        training: what the paper says about its training, if it says it in tokens.
    """

    spec: AnySpec
    paper: str
    context: int | None
    training: Training | None = None

    @property
    def training_tokens(self) -> float | None:
        """Tokens seen in training, where published."""
        return self.training.tokens if self.training else None
