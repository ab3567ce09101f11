"""Vectors of texts, for search, comparison and clustering."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.inference.forward import hidden_states
from trivium.inference.text_model import TextModel
from trivium.models.heads import pool
from trivium.spec import Pooling


@torch.inference_mode()
def embed_ids(
    lm: TextModel, inputs: Sequence[Sequence[int]], *, pooling: Pooling | None, normalize: bool
) -> Tensor:
    """One vector per input: the mean, the first or the last of its hidden states.

    Args:
        pooling: None: the mean; of a decoder the last, which alone attends to the whole text.
        normalize: scale vectors to length 1, so that dot products are cosine similarities.

    Returns:
        Float32 [N, D] on the CPU, in the order of the inputs.
    """
    pooling = pooling or ("last" if lm.module.spec.family == "decoder-only" else "mean")
    vectors = torch.empty(len(inputs), lm.module.spec.d_model)
    for batch, hidden, mask in hidden_states(lm, inputs):
        vectors[batch] = pool(hidden.float(), mask, pooling).cpu()
    return F.normalize(vectors, dim=-1) if normalize else vectors
