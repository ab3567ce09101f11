"""Normal weights by the width of the model (GPT-NeoX)."""

from __future__ import annotations

from typing import Literal

from trivium.spec.initializations import Initialization


class Small(Initialization):
    """Start of GPT-NeoX: normal weights of deviation sqrt(2 / (5 d_model)), biases 0, norms 1.

    The output matrices of attention and feed-forward, which add to the residual stream, have 2 /
    (layers sqrt(d_model)), layers of encoder and decoder together. Token vectors start as other
    matrices do.

    Source: Black et al. 2022, section 2.1, after Nguyen and Salazar 2019 (the first) and Wang 2021
    (the second). The text names the feed-forward network's output alone; the authors' code, and
    this, starts attention's so, too.
    """

    kind: Literal["small"] = "small"
    attention: Literal["random"] = "random"
