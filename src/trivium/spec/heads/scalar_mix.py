"""The head that mixes the layers of a model for a task."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.heads import Head
from trivium.spec.part import Count


class ScalarMix(Head):
    """gamma sum_j s_j h_j, s a softmax: what the heads of a task read (Peters et al. 2018).

    `num_layers` are those that are mixed, the token vectors among them.
    """

    predicts: ClassVar[bool] = False
    kind: Literal["scalar-mix"] = "scalar-mix"
    num_layers: Count
