"""Two-stream attention (XLNet): tokens, and queries that ask for some of them.

Shape letters: B batch, T positions, M predicted positions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from trivium.nn.context import Context


def two_streams(context: Context, order: Tensor, predicted: Tensor) -> Context:
    """The context of T tokens and, after them, of M queries that stand where tokens are.

    A token sees those that are known no later than itself, a query those that are known before its
    token; nobody sees queries. Source: Yang et al. 2019, section 2.3: the content stream and the
    query stream.

    Args:
        context: of the tokens.
        order: int64 [B, T], when a token becomes known.
        predicted: int64 [B, M], the columns of the tokens that are predicted.
    """

    def of_both(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x.expand(len(predicted), -1)
        return torch.cat((x, x.gather(1, predicted)), 1)

    positions, columns = of_both(context.positions), of_both(context.columns)
    assert positions is not None
    assert columns is not None
    return replace(
        context,
        positions=positions,
        columns=columns,
        causal=True,
        real=of_both(context.real),
        documents=of_both(context.documents),
        types=of_both(context.types),
        order=torch.cat((2 * order, 2 * order.gather(1, predicted) - 1), 1),
        num_keys=order.shape[1],
    )
