"""The attention weights of every layer and head in one forward pass.

Shape letters: B batch, T query positions, S key positions, N heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.models import LanguageModule, Transformer
from trivium.nn.attention import MultiHeadAttention


@dataclass(frozen=True)
class AttentionWeights:
    """Probabilities [B, N, T, S] of every layer, from the first on; each row of S sums to 1.

    Rows of queries that may attend to nothing are 0.

    Args:
        encoder: self-attention of the encoder; empty where there is none.
        decoder: self-attention of the decoder.
        cross: attention of the decoder to the encoder's output.
    """

    encoder: tuple[Tensor, ...] = ()
    decoder: tuple[Tensor, ...] = ()
    cross: tuple[Tensor, ...] = ()


@torch.inference_mode()
def attention_weights(model: LanguageModule, input_ids: Tensor, **inputs: Any) -> AttentionWeights:
    """softmax(Q K^T * scale + bias + mask) of every attention in one forward pass, in float32.

    Args:
        model: a Transformer; in training mode, too, nothing is dropped.
        input_ids: int64 [B, T].
        **inputs: further arguments of `Transformer.forward`.

    Raises:
        SpecError: a model without attention, or input that it cannot take.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    if not isinstance(model, Transformer):
        raise SpecError("this model is not a Transformer: it has no attention weights.")
    was_training = model.training
    model.eval()
    try:
        with _recorded(model.encoder) as encoder, _recorded(model.decoder) as decoder:
            # Without hooks of the model: a server's decodes other requests before a pass.
            model.forward(input_ids, **inputs)
    finally:
        model.train(was_training)
    return AttentionWeights(tuple(encoder[0]), tuple(decoder[0]), tuple(decoder[1]))


@contextmanager
def _recorded(stack: nn.Module | None) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Lists that the stack fills while it runs: weights of self-attention, of cross-attention.

    Layers that share their weights run, and are recorded, once each.
    """
    own: list[Tensor] = []
    cross: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, MultiHeadAttention)
        weights = own if kwargs.get("key_value") is None else cross
        inputs = {name: value for name, value in kwargs.items() if name != "cache"}
        weights.append(module.probabilities(*args, **inputs))

    with ExitStack() as hooks:
        for module in () if stack is None else stack.modules():
            if isinstance(module, MultiHeadAttention):
                handle = module.register_forward_pre_hook(record, with_kwargs=True)
                hooks.callback(handle.remove)
        yield own, cross
