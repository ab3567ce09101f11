"""Gradual unfreezing: the lower a layer, the later its training starts."""

from __future__ import annotations

from itertools import chain

from torch import nn

from trivium.train.optimizers import trained_parameters


class GradualUnfreezing:
    """Gradual unfreezing of a model's layers, from the last to the first.

    Heads and the last layer are trained from the start. Then the other layers are unfrozen one by
    one at regular intervals, and finally the embeddings. The intervals are fractions of the budget.
    Gradients of frozen weights are dropped before clipping. Optimizers skip weights without a
    gradient, so that these weights do not change and have no moments. All processes still compute
    and reduce all gradients, so that unfreezing works with every parallel layout.

    Source: Howard and Ruder 2018, section 3.3, where the interval is an epoch.

    Args:
        model: the model to train; weights with `requires_grad` False stay frozen.
        fraction: the fraction of the budget after which all layers are unfrozen.
    """

    def __init__(self, model: nn.Module, fraction: float) -> None:
        depths: dict[nn.Parameter, int] = model.layer_depths()  # type: ignore[operator]
        weights = trained_parameters(model).values()
        stages = sorted({max(1, depths[weight]) for weight in weights})
        self.fraction = fraction
        self.stages = [[w for w in weights if max(1, depths[w]) == stage] for stage in stages]
        """Groups of weights, in the order in which they are unfrozen."""

    def drop_gradients(self, progress: float) -> None:
        """Drop the gradients of all weights that are still frozen.

        `progress` is the fraction of the budget that has been used.
        """
        # Quotients such as 0.3 / 0.1 may be slightly below the exact integer.
        more = int(progress / self.fraction * (len(self.stages) - 1) + 1e-9)
        for weight in chain.from_iterable(self.stages[1 + more :]):
            weight.grad = None
