"""The token before each, which RWKV reads beside it.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.nn.sequence_info import SequenceInfo


def token_before(x: Tensor, sequence: SequenceInfo, last: Tensor | None) -> tuple[Tensor, Tensor]:
    """What is before each of x [B, T, D], 0 at the beginning of a text, and the last [B, D].

    Padding is 0, and left out where it follows the tokens of a cache.

    Args:
        x: vectors of tokens.
        context: that of the pass.
        last: [B, D], what a state keeps of tokens before x; None: there are none.

    Raises:
        SpecError: tokens are read in another order than that of their row.
    """
    if sequence.custom is not None or sequence.num_keys is not None:
        raise SpecError("a model that reads the token before another takes no order and no mask.")
    if sequence.state_mask is not None:
        x = x * sequence.state_mask[..., None].to(x.dtype)
    first = torch.zeros_like(x[:, 0]) if last is None else last.to(x.dtype)
    row = torch.cat((first[:, None], x), 1)
    before = row[:, :-1]
    if sequence.document_starts is not None:
        before = before.masked_fill(sequence.document_starts[..., None], 0.0)
    if sequence.cache_slice is None or sequence.cache_slice.new is None:
        return before, row[:, -1]
    return before, row[torch.arange(len(x), device=x.device), sequence.cache_slice.new]


def initial_mixture(width: int, power: float = 0.5) -> Tensor:
    """How much of the token itself a mixture has at first, [D]: (i / D)^power in dimension i.

    Source: Peng et al. 2023, appendix on initialization, where the power falls from 1 in the first
    layer to 0 in the last; here all layers start as that in the middle.
    """
    return (torch.arange(width) / width) ** power
