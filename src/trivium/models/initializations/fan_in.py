"""Normal weights by the number of inputs (T5, PaLM)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trivium import spec
from trivium.models.initializations import WeightStart, is_table
from trivium.models.transformer import Transformer
from trivium.nn.mixers.attention import AttentionMixer


class FanInStart(WeightStart, of=spec.FanIn):
    """See `spec.FanIn`; a bias of distances has deviation d_model^-0.5."""

    def __init__(self, start: Any, model: Transformer) -> None:
        super().__init__(start, model)
        attentions = [each for each in model.modules() if isinstance(each, AttentionMixer)]
        self._sizes = {id(each.query.weight): _size_of_queries(each) for each in attentions}
        tables = (table for stack in model.stacks for table in stack.tables)
        self._biases = {id(weight) for table in tables for weight in table.parameters()}

    def deviation(self, name: str, weight: Tensor) -> float:
        """See `WeightStart.deviation`."""
        if is_table(name):
            return 1.0
        if id(weight) in self._biases:
            return self.model.spec.d_model**-0.5
        return weight.shape[-1] ** -0.5 * self._sizes.get(id(weight), 1.0)


def _size_of_queries(attention: AttentionMixer) -> float:
    """What makes up for a scale of scores that is not the usual one."""
    return attention.part.replace(scale=None).score_scale / attention.scale
