"""Embeddings of texts and tokens, for search, comparison and clustering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.inference.forward import hidden_states
from trivium.inference.text_model import TextModel
from trivium.models.heads.text import Pooling, pool
from trivium.text.inputs import TextInput


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The contextual embeddings of the tokens of a text, without special tokens.

    Args:
        tokens: the tokens as text; bytes that are not text are written \\xNN.
        spans: the character offsets of the tokens in the text.
        vectors: float32 [T, D] on the CPU.
    """

    tokens: list[str]
    spans: list[tuple[int, int]]
    vectors: Tensor


@torch.inference_mode()
def embed_windows(
    lm: TextModel,
    texts: Sequence[Sequence[TextInput]],
    *,
    pooling: Pooling | None,
    normalize: bool | None,
) -> Tensor:
    """Return one embedding per text: its pooled hidden states, projected by the vector head if any.

    If a text has several windows, the pooled states of the windows are averaged, weighted by the
    number of tokens. With mean pooling, this is the mean over the tokens of all windows.

    Args:
        lm: the model.
        texts: the windows of every text.
        pooling: the pooling; None: the model's pooling.
        normalize: whether to scale vectors to length 1, so that dot products are cosine
            similarities; None: as in the model's settings.

    Returns:
        Float32 [N, D] on the CPU, in the order of the texts.
    """
    pooling = pooling or lm.pooling
    windows = [window for text in texts for window in text]
    owners = torch.tensor([number for number, text in enumerate(texts) for _ in text])
    vectors = torch.zeros(len(texts), lm.module.spec.head_config.d_model)
    for batch, hidden, mask in _window_states(lm, windows):
        lengths = mask.sum(1, keepdim=True)
        pooled = (pool(hidden.float(), mask, pooling) * lengths).cpu()
        vectors.index_add_(0, owners[batch], pooled)
    totals = torch.tensor([sum(len(window.ids) for window in text) for text in texts])
    vectors = vectors / totals[:, None]
    if "vector" in lm.module.heads:
        vectors = vectors.to(lm.module.device, lm.module.dtype)
        vectors = lm.module.heads["vector"](vectors).float().cpu()
    scales = lm.settings.normalizes if normalize is None else normalize
    return F.normalize(vectors, dim=-1) if scales else vectors


@torch.inference_mode()
def embed_tokens(
    lm: TextModel, texts: Sequence[Sequence[TextInput]], *, normalize: bool
) -> list[TokenVectors]:
    """Return the hidden states of each text's tokens, without special tokens.

    `texts` contains the windows of every text. With `normalize`, vectors are scaled to length 1, so
    that dot products are cosine similarities.
    """
    windows = [window for text in texts for window in text]
    states: dict[int, Tensor] = {}
    for batch, hidden, _ in _window_states(lm, windows):
        for number, rows in zip(batch, hidden.float().cpu()):
            own = [i for i, text in enumerate(windows[number].texts) if text is not None]
            states[number] = F.normalize(rows[own], dim=-1) if normalize else rows[own]
    names, numbers, results = lm.source_tokenizer.readable_tokens, iter(range(len(windows))), []
    for text in texts:
        shown = [
            (names[token], span)
            for window in text
            for token, span, owner in zip(window.ids, window.offsets, window.texts, strict=True)
            if owner is not None
        ]
        vectors = torch.cat([states[next(numbers)] for _ in text])
        results.append(TokenVectors([t for t, _ in shown], [s for _, s in shown], vectors))
    return results


def _window_states(
    lm: TextModel, windows: Sequence[TextInput]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Return `hidden_states` of windows, with token type ids if the model has several types."""
    compares = lm.spec.num_token_types > 1
    types = [window.type_ids for window in windows] if compares else None
    return hidden_states(lm, [window.ids for window in windows], token_type_ids=types)
