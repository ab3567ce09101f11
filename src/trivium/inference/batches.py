"""Many inputs through a model: sorted by length, padded little, answers in the order asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from trivium.models import LanguageModule
from trivium.nn.positions import check_length

BATCH_TOKENS = 4096


def hidden_states(
    model: LanguageModule,
    inputs: Sequence[Sequence[int]],
    *,
    type_ids: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    decoder_start: Sequence[int] = (),
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Hidden states of inputs of any lengths, batch by batch, the longest first.

    Yields the numbers of some inputs, their hidden states [B, T, D], and which are real [B, T]. An
    encoder-decoder reads an input on both sides, with the decoder one token behind (Lewis et al.
    2019, section 3.1).

    Args:
        model: in evaluation mode.
        inputs: ids, at least one each.
        type_ids: sentence A or B, for models that have token types.
        batch_tokens: tokens in one batch, padding included; never less than one input.
        decoder_start: ids of which the first is what the decoder of an encoder-decoder begins with.

    Raises:
        SpecError: an input longer than the model's positions.
    """
    lengths = np.array([len(ids) for ids in inputs])
    order = np.argsort(-lengths, kind="stable").tolist()
    has_types = model.num_token_types > 1
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        check_length(longest, model.spec.max_length)
        numbers = order[start : start + max(1, batch_tokens // max(1, longest))]
        start += len(numbers)
        ids = _padded([inputs[number] for number in numbers], longest, model.device)
        sizes = torch.from_numpy(lengths[numbers]).to(model.device)
        real = torch.arange(longest, device=model.device) < sizes[:, None]
        # Without a mask attention takes its fastest way.
        given = {} if lengths[numbers[-1]] == longest else {"attention_mask": real}
        if type_ids is not None and has_types:
            types = [type_ids[number] for number in numbers]
            given["token_type_ids"] = _padded(types, longest, model.device)
        if model.spec.family == "encoder-decoder":
            first = ids.new_full((len(ids), 1), decoder_start[0])
            given["decoder_input_ids"] = torch.cat((first, ids[:, :-1]), 1)
        yield numbers, model(ids, **given), real


def _padded(rows: Sequence[Sequence[int]], length: int, device: torch.device) -> Tensor:
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows], device=device)
