"""Hidden states of many inputs: batches of similar lengths, longest first.

Shape letters: B inputs of a batch, T tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trivium.inference.decoding import mask_of, pad_rows
from trivium.inference.text_model import TextModel
from trivium.nn.positions import check_length

_BATCH_TOKENS = 4096


class HiddenBatch(NamedTuple):
    """Some inputs by their numbers, hidden states [B, T, D] and bool mask [B, T] of real tokens."""

    numbers: list[int]
    hidden: Tensor
    mask: Tensor


def hidden_states(
    lm: TextModel,
    inputs: Sequence[Sequence[int]],
    *,
    token_type_ids: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = _BATCH_TOKENS,
) -> Iterator[HiddenBatch]:
    """Hidden states of inputs of any lengths, batch by batch.

    An encoder-decoder reads an input on both sides, its decoder shifted right by one token (Lewis
    et al. 2019, section 3.1).

    Args:
        lm: any model.
        inputs: ids, at least one each.
        token_type_ids: sentence A or B, used by models that have token types.
        batch_tokens: tokens of a batch with padding, but at least one input.

    Raises:
        SpecError: an input longer than the model's positions.
    """
    module, start = lm.module, 0
    order = sorted(range(len(inputs)), key=lambda number: -len(inputs[number]))
    while start < len(order):
        longest = len(inputs[order[start]])
        check_length(longest, module.spec.max_length)
        numbers = order[start : start + max(1, batch_tokens // max(1, longest))]
        start += len(numbers)
        ids, lengths = pad_rows([inputs[number] for number in numbers], module.device)
        mask = mask_of(lengths, longest)
        model_inputs = {"attention_mask": mask}
        if token_type_ids is not None and module.num_token_types > 1:
            types, _ = pad_rows([token_type_ids[number] for number in numbers], module.device)
            model_inputs["token_type_ids"] = types
        if module.spec.family == "encoder-decoder":
            first = ids.new_full((len(ids), 1), lm.generation_rules.decoder_start[0])
            model_inputs["decoder_input_ids"] = torch.cat((first, ids[:, :-1]), 1)
        hidden = module(ids, **model_inputs)
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        yield HiddenBatch(numbers, hidden, real)
