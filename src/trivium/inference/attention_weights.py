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
        **inputs: further arguments of `Transformer.read`.

    Raises:
        SpecError: a model without attention, or input that it cannot take.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    if model.spec.aligns:
        training = model.training
        alignments = model.eval().alignments(input_ids, **inputs)
        model.train(training)
        return AttentionWeights(cross=(alignments[:, None].float(),))
    if not model.spec.attends:
        raise SpecError("a layer of this model is no attention: it has no attention weights.")
    weights: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}

    def record(stack: str, module: AttentionModule, inputs: tuple[Any, ...]) -> None:
        """Layers that share their weights run, and are recorded, once each."""
        kind = "cross" if isinstance(module, CrossAttention) else stack
        weights[kind].append(module.probabilities(*inputs))

    with ExitStack() as ended:
        ended.callback(model.train, model.training)
        for name, module in model.named_modules():
            if isinstance(module, AttentionModule):
                hook = partial(record, name.partition(".")[0])
                ended.callback(module.register_forward_pre_hook(hook).remove)
        # Without hooks of the model (a server's decodes other requests before a pass), and without
        # a mask decoder.
        model.eval()
        (model.encode if model.decoder is None else model.forward)(input_ids, **inputs)
    return AttentionWeights(**{kind: tuple(layers) for kind, layers in weights.items()})
