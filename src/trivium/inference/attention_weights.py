"""The attention weights of every layer and head in one forward pass.

Shape letters: B batch, T query positions, S key positions, N heads.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.models import LanguageModule
from trivium.nn.mixers.attention import AttentionModule, CrossAttention


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of every layer, [B, N, T, S] each, first layer first.

    The weights of a query sum to 1 over S, or are all 0 if the query may not attend to any key.
    With attention sinks their sum is less than 1: the rest is the weight of the sink.

    Args:
        encoder: the encoder's self-attention; empty if there is none.
        decoder: the decoder's self-attention; empty if there is none.
        cross: the decoder's cross-attention to the encoder's output.
    """

    encoder: tuple[Tensor, ...] = ()
    decoder: tuple[Tensor, ...] = ()
    cross: tuple[Tensor, ...] = ()


@torch.inference_mode()
def attention_weights(model: LanguageModule, input_ids: Tensor, **inputs: Any) -> AttentionWeights:
    """Compute softmax(Q K^T * scale + bias + mask) of all attention layers in one forward pass.

    Args:
        model: a Transformer, or a recurrent encoder-decoder with attention. Dropout is not applied,
            even in training mode.
        input_ids: int64 [B, T].
        **inputs: further arguments of `Transformer.read`.

    Returns:
        The weights in float32.

    Raises:
        SpecError: the model has a layer without attention, or the input does not fit the model.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    if model.spec.aligns:
        training = model.training
        alignments = model.eval().alignments(input_ids, **inputs)
        model.train(training)
        return AttentionWeights(cross=(alignments[:, None].float(),))
    if not model.spec.attention_only:
        raise SpecError("a layer of this model is no attention: it has no attention weights.")
    weights: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}

    def record(stack: str, module: AttentionModule, inputs: tuple[Any, ...]) -> None:
        """Append a layer's attention weights; a layer used several times is recorded each time."""
        kind = "cross" if isinstance(module, CrossAttention) else stack
        weights[kind].append(module.probabilities(*inputs))

    with ExitStack() as cleanup:
        cleanup.callback(model.train, model.training)
        for name, module in model.named_modules():
            if isinstance(module, AttentionModule):
                hook = partial(record, name.partition(".")[0])
                cleanup.callback(module.register_forward_pre_hook(hook).remove)
        # These calls run neither hooks of the model (a server's hook decodes other requests before
        # a forward pass) nor an enhanced mask decoder.
        model.eval()
        (model.encode if model.decoder is None else model.forward)(input_ids, **inputs)
    return AttentionWeights(**{kind: tuple(layers) for kind, layers in weights.items()})
