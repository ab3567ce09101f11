"""Loss scaling for float16, in which many gradients would underflow.

The loss is multiplied by a loss scale before the backward pass, and the gradients are divided by
the loss scale before clipping. If gradients overflow, the step is skipped, and the loss scale is
reduced for the next steps. After many steps without an overflow, the loss scale grows again.

`torch.amp.GradScaler` decides separately for each optimizer and each process, from their own
gradients. Here the norm of all gradients decides, so that all optimizers and processes skip the
same steps in every parallel layout. Reading the norm synchronizes the host with the device once per
step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

# The defaults of `torch.amp.GradScaler`: the first loss scale, and the steps until it doubles.
_FIRST_SCALE, _GROWTH_INTERVAL = 65536.0, 2000
# Below this loss scale (the limit of fairseq), a run does not recover.
_SMALLEST_SCALE = 1e-4


@dataclass
class LossScale:
    """A dynamic loss scale: a power of 2 that is updated after every step.

    The factor is halved after a step whose gradients overflow, and doubled after 2,000 steps
    without an overflow. Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.

    Args:
        factor: the loss scale of the next step.
        steps: the number of steps since the loss scale last changed.
    """

    factor: float = _FIRST_SCALE
    steps: int = 0

    @property
    def is_too_small(self) -> bool:
        """Whether the loss scale is so small that gradients will keep overflowing."""
        return self.factor < _SMALLEST_SCALE

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients of the parameters by the loss scale, in place."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self.factor)

    def update(self, *, overflowed: bool) -> None:
        """Update the loss scale after a step. `overflowed` says whether gradients overflowed."""
        self.steps += 1
        if overflowed:
            self.factor, self.steps = self.factor / 2.0, 0
        elif self.steps == _GROWTH_INTERVAL:
            self.factor, self.steps = self.factor * 2.0, 0
