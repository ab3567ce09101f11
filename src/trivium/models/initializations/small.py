"""Normal weights by the width of the model (GPT-NeoX)."""

from __future__ import annotations

from torch import Tensor

from trivium.models.initializations import WeightStart
from trivium.spec.initializations.small import Small


class SmallStart(WeightStart, of=Small):
    """See `trivium.spec.initializations.small.Small`."""

    def deviation(self, name: str, weight: Tensor) -> float:
        """See `WeightStart.deviation`."""
        model = self.model.spec
        if id(weight) in self.adding_to_stream:
            return 2.0 / sum(stack.num_layers for stack in model.stacks) / model.d_model**0.5
        return (2.0 / (5.0 * model.d_model)) ** 0.5
