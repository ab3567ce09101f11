"""Uniform weights of Glorot and Bengio 2010."""

from __future__ import annotations

from typing import Literal

from trivium.spec.initializations import Initialization


class Xavier(Initialization):
    """Start: uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010), biases 0.

    Token vectors are normal with deviation d_model^-0.5, as the scaled, tied embeddings of the
    first Transformer want them; with `tables` "uniform" they start as matrices do.

    `attention` is the start of queries and keys: "diagonal" cross-attention learns faster from
    little; see `trivium.models.initialization`.
    """

    kind: Literal["xavier"] = "xavier"
    tables: Literal["normal", "uniform"] = "normal"
    attention: Literal["random", "diagonal"] = "random"
