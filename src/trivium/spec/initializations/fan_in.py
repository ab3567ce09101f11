"""Normal weights by fan-in (T5, PaLM)."""

from __future__ import annotations

from typing import Literal

from trivium.spec.initializations import Initialization


class FanIn(Initialization):
    """Start of T5 and PaLM: normal with variance 1 / fan-in; token vectors with variance 1.

    Queries make up for a `scale` of scores that is not 1 / sqrt(head_dim): T5's is 1, so that they
    start with variance 1 / (fan-in * head_dim); PaLM's start as all other matrices do (Chowdhery et
    al. 2022, section 5). `attention` is as in `Normal`.
    """

    kind: Literal["fan-in"] = "fan-in"
    attention: Literal["random", "copy_heads"] = "random"
