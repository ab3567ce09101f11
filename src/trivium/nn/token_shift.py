"""Token shift (RWKV): the hidden state of each token is mixed with that of the previous token.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.nn.sequence_info import SequenceInfo


def shift_tokens(x: Tensor, sequence: SequenceInfo, last: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the hidden state of each token's previous token.

    It is 0 for the first token of a sequence or packed document, and after padding.

    Args:
        x: [B, T, D], the hidden states of the tokens.
        sequence: the metadata of the forward pass.
        last: [B, D], the hidden state of the last cached token, which precedes x; None: no cache.

    Returns:
        The hidden states of the previous tokens [B, T, D], and the hidden state of the last token
        of each row [B, D]. With a cache, padding after the new tokens is skipped to find the last.

    Raises:
        SpecError: the forward pass has a custom attention mask or query-only tokens.
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


def initial_mix_weights(width: int, power: float = 0.5) -> Tensor:
    """Return the initial mixing weights of token shift, [D]: (i / D)^power for dimension i.

    They weight the current token; the previous token has 1 minus the weight. Source: Peng et al.
    2023, appendix on initialization. In the paper the power falls from 1 in the first layer to 0 in
    the last layer. Here all layers are initialized like the middle layer (power 0.5).
    """
    return (torch.arange(width) / width) ** power
