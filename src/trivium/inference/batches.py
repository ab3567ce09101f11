"""Many inputs through a model: sorted by length, padded little, answers in the order asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from trivium.models import LanguageModule
from trivium.nn.positions import check_length
from trivium.spec import ModelSpec

BATCH_TOKENS = 4096


def hidden_states(
    model: LanguageModule,
    inputs: Sequence[Sequence[int]],
    *,
    type_ids: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Hidden states of inputs of any lengths, batch by batch, the longest first.

    Yields the numbers of some inputs, their hidden states [B, T, D], and which are real [B, T].

    Args:
        model: in evaluation mode; not an encoder-decoder.
        inputs: ids, at least one each.
        type_ids: sentence A or B, for models that have token types.
        batch_tokens: tokens in one batch, padding included; never less than one input.

    Raises:
        SpecError: an input longer than the model's positions.
    """
    lengths = np.array([len(ids) for ids in inputs])
    order = np.argsort(-lengths, kind="stable").tolist()
    has_types = isinstance(model.spec, ModelSpec) and model.spec.embedding.num_token_types > 1
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        check_length(longest, model.spec.max_length)
        numbers = order[start : start + max(1, batch_tokens // max(1, longest))]
        start += len(numbers)
        ids = _padded([inputs[number] for number in numbers], longest, model.device)
        sizes = torch.from_numpy(lengths[numbers]).to(model.device)
        real = torch.arange(longest, device=model.device) < sizes[:, None]
        given = {} if bool(real.all()) else {"attention_mask": real}
        if type_ids is not None and has_types:
            types = [type_ids[number] for number in numbers]
            given["token_type_ids"] = _padded(types, longest, model.device)
        yield numbers, model(ids, **given), real


def _padded(rows: Sequence[Sequence[int]], length: int, device: torch.device) -> Tensor:
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows], device=device)
