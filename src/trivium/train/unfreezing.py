"""Gradual unfreezing: the lower a layer, the later its training begins."""

from __future__ import annotations

from itertools import chain

from torch import nn

from trivium.train.optimizers import trained


class GradualUnfreezing:
    """Heads and the last layer are trained from the start, one more layer after each part.

    The parts are equal; after the last of them embeddings are trained, too. What is trained follows
    from the share of the budget that is used. Frozen weights lose their gradients before these are
    clipped: an optimizer passes over weights without one, which stay as they are and have no
    moments. Processes compute and sum all gradients, so that each layout works as without.

    Source: Howard and Ruder 2018, section 3.3, where a part is an epoch.

    Args:
        model: the trained model; weights that need no gradient stay frozen.
        share: the share of the budget that all parts take together.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        depths: dict[nn.Parameter, int] = model.layer_depths()  # type: ignore[operator]
        weights = trained(model).values()
        stages = sorted({max(1, depths[weight]) for weight in weights})
        self.share = share
        self.stages = [[w for w in weights if max(1, depths[w]) == stage] for stage in stages]
        """The weights of each stage, in the order in which their training begins."""

    def drop_gradients(self, progress: float) -> None:
        """Drop the gradients of weights that are frozen at this share of the budget, 0 to 1."""
        # Shares such as 0.3 / 0.1 may be a little less than the number that is meant.
        more = int(progress / self.share * (len(self.stages) - 1) + 1e-9)
        for weight in chain.from_iterable(self.stages[1 + more :]):
            weight.grad = None
