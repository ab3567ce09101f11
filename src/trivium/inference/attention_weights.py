"""Who looks at whom: the attention probabilities of every layer and head.

Shape letters: B batch, T query positions, S key positions, N heads, H head_dim.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.models import LanguageModule, Transformer
from trivium.models.transformer import Stack
from trivium.nn.attention import Attention
from trivium.nn.mask import Mask
from trivium.nn.positions import Rotation


@dataclass(frozen=True)
class AttentionWeights:
    """Probabilities [B, N, T, S] of every layer, from the first on; each row of S sums to 1.

    Args:
        encoder: of what the encoder reads, with itself.
        decoder: of what the decoder reads, with itself.
        cross: of what the decoder reads, with what the encoder read.

    A model without such attention has none there.
    """

    encoder: tuple[Tensor, ...] = ()
    decoder: tuple[Tensor, ...] = ()
    cross: tuple[Tensor, ...] = ()


@torch.inference_mode()
def attention_weights(
    model: LanguageModule,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
) -> AttentionWeights:
    """softmax(Q K^T * scale + bias + mask) of every attention in one forward pass, in float32.

    Dropout is not shown. A copy that shares the weights is listened to: the model is not touched,
    and others may use it meanwhile.

    Args:
        model: a Transformer in evaluation mode.
        input_ids: int64 [B, T].
        attention_mask: [B, T], nonzero where a token is real.
        token_type_ids: int64 [B, T], sentence A (0) or B (1).
        decoder_input_ids: int64 [B, T], what the decoder of an encoder-decoder reads.
        decoder_attention_mask: [B, T], as `attention_mask` for the decoder.

    Raises:
        SpecError: a model without attention, or input that the model cannot take.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    if not isinstance(model, Transformer):
        raise SpecError("this model is no Transformer: it has no attention to look at.")
    shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, shared)
    encoder, _ = _overheard(model.encoder)
    decoder, cross = _overheard(model.decoder)
    model(
        input_ids,
        attention_mask=attention_mask,
        token_type_ids=token_type_ids,
        decoder_input_ids=decoder_input_ids,
        decoder_attention_mask=decoder_attention_mask,
    )
    return AttentionWeights(tuple(encoder), tuple(decoder), tuple(cross))


def _overheard(stack: Stack | None) -> tuple[list[Tensor], list[Tensor]]:
    """Lists that fill up when the stack runs: its attention to itself, and to a memory.

    Layers that share their weights are called, and heard, once each.
    """
    own: list[Tensor] = []
    across: list[Tensor] = []

    def hear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, Attention)
        memory = kwargs.get("memory")
        heard = _probabilities(module, *args, places=kwargs.get("places"), memory=memory)
        (own if memory is None else across).append(heard)

    for module in () if stack is None else stack.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(hear, with_kwargs=True)
    return own, across


def _probabilities(
    attention: Attention,
    x: Tensor,
    mask: Mask,
    *,
    places: Rotation | Tensor | None,
    memory: Tensor | None,
) -> Tensor:
    """[B, T, D] -> [B, N, T, S], as `Attention` computes them, one step at a time."""

    def heads(projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    if memory is None:
        query, key, _ = attention.project(x, places)
    else:
        query, key = heads(attention.query(x)), heads(attention.key(memory))
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)  # grouped-query attention
    scores = query.float() @ key.float().transpose(-1, -2) * attention.scale
    if isinstance(places, Tensor):
        scores = scores + places.float()
    allowed = mask.allowed(attention.pattern, scores.shape[2], scores.shape[3], scores.device)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1)
