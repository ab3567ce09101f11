"""Normal weights by fan-in (T5)."""

from __future__ import annotations

from typing import Literal

from trivium.spec.initializations import Initialization


class FanIn(Initialization):
    """Start of T5: normal with variance 1 / fan-in; token vectors with variance 1.

    Queries start with variance 1 / (fan-in * head_dim), because T5 does not divide attention
    scores by sqrt(head_dim). `attention` is as in `Normal`.
    """

    kind: Literal["fan-in"] = "fan-in"
    attention: Literal["random", "copy_heads"] = "random"
