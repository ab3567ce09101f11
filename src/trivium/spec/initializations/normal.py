"""Normal weights (BERT, GPT)."""

from __future__ import annotations

from typing import Literal

from trivium.spec.initializations import Initialization
from trivium.spec.part import Deviation


class Normal(Initialization):
    """Start: normal weights of deviation `std`, biases 0, norms 1.

    `residual_init` is the start of the output matrices of attention, cross-attention and
    feed-forward, which add to the residual stream: with `std` ("full": BERT as published), with
    std / sqrt(2 layers), layers of encoder and decoder together ("scaled": GPT-2), or zero ("zero":
    every block, and the dense layer of an MLM head, starts as the identity).

    `attention` is the start of queries and keys: "position_offsets" and "copy_heads" learn faster
    in short runs; see `trivium.models.initialization`. The first is for learned positions, and for
    rotary ones in attention with biases; the second for encoder-decoders with learned positions or
    relative biases.
    """

    kind: Literal["normal"] = "normal"
    std: Deviation = 0.02
    embedding_std: Deviation = 0.02
    residual_init: Literal["full", "scaled", "zero"] = "full"
    attention: Literal["random", "position_offsets", "copy_heads"] = "random"
