"""Loss scaling for float16, whose smallest numbers are too large for many gradients.

The loss is multiplied by a factor before the backward pass, and the gradients are divided by the
factor before clipping. Gradients that overflow are dropped: their step is skipped, and the next
steps have a smaller factor. After many steps without an overflow the factor grows again.

`torch.amp.GradScaler` decides for each optimizer, and each process, by the gradients that it has.
Here the norm of all gradients decides, so that all optimizers and all processes skip the same steps
in every layout. Reading the norm makes the host wait for the device once in every step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

# As of `torch.amp.GradScaler`: the first factor, and the steps after which the factor is doubled.
_FIRST_SCALE, _GROWTH_INTERVAL = 65536.0, 2000
# With a smaller factor than this one of fairseq a run does not recover.
_SMALLEST_SCALE = 1e-4


@dataclass
class LossScale:
    """The factor of the loss, a power of 2, which follows from the steps so far.

    The factor is halved after a step whose gradients overflow, and doubled after 2,000 steps
    without an overflow. Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.

    Args:
        factor: the factor of the next step.
        steps: the number of steps since the factor was last changed.
    """

    factor: float = _FIRST_SCALE
    steps: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether the factor is so small that gradients will keep overflowing."""
        return self.factor < _SMALLEST_SCALE

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the factor, in place."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self.factor)

    def update(self, *, overflowed: bool) -> None:
        """Set the factor for the next step."""
        self.steps += 1
        if overflowed:
            self.factor, self.steps = self.factor / 2.0, 0
        elif self.steps == _GROWTH_INTERVAL:
            self.factor, self.steps = self.factor * 2.0, 0
