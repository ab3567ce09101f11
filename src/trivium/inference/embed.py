"""Vectors of texts, for search, comparison and clustering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.inference.batches import hidden_states
from trivium.inference.text_model import TextModel
from trivium.models.heads import pool

Pooling = Literal["first", "last", "mean"]


@torch.inference_mode()
def embed_ids(
    lm: TextModel, inputs: Sequence[Sequence[int]], *, pooling: Pooling, normalize: bool
) -> Tensor:
    """One vector per input, of the mean, the first or the last of its hidden states.

    Args:
        normalize: scale vectors to length 1, so that dot products are cosine similarities.

    Returns:
        Float32 [N, D] on the CPU, in the order of the inputs.
    """
    vectors = torch.empty(len(inputs), lm.module.spec.d_model)
    for numbers, hidden, mask in hidden_states(lm, inputs):
        vectors[numbers] = pool(hidden.float(), mask, pooling).cpu()
    return F.normalize(vectors, dim=-1) if normalize else vectors
