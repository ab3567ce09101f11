"""Vectors of texts, for search, comparison and clustering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from trivium.inference.batches import BATCH_TOKENS, hidden_states
from trivium.models import LanguageModule
from trivium.models.heads import pool

Pooling = Literal["first", "last", "mean"]


@torch.inference_mode()
def embed_texts(
    model: LanguageModule,
    inputs: Sequence[Sequence[int]],
    *,
    pooling: Pooling,
    normalize: bool,
    batch_tokens: int = BATCH_TOKENS,
) -> Tensor:
    """One vector a text, of all, the first or the last of its tokens: float32 [N, D] on the CPU.

    With `normalize` vectors have length 1, so that their products are cosines.
    """
    found: dict[int, Tensor] = {}
    for numbers, hidden, real in hidden_states(model, inputs, batch_tokens=batch_tokens):
        # Summed in float32, whatever the precision of the weights.
        found.update(zip(numbers, pool(hidden.float(), real, pooling).cpu()))
    vectors = torch.stack([found[number] for number in range(len(inputs))])
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
