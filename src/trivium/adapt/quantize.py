"""Pack weights in oneDNN's memory layout, or quantise them to 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from trivium.adapt.bitsandbytes_layers import LLMInt8Linear, NF4Linear
from trivium.adapt.lora import LoRALinear, is_quantized, replace_module
from trivium.errors import SpecError
from trivium.models import LanguageModule
from trivium.models.heads.vocabulary import VocabularyHead
from trivium.nn.packed_linear import Int8Linear, PackedLinear

Quantization = Literal["int8", "nf4"]
"""The weight formats for inference: "int8" (`Int8Linear`) and "nf4" (bitsandbytes)."""
BaseQuantization = Literal["int8", "nf4"]
"""The bitsandbytes formats of frozen base weights while an adapter is trained.

"nf4" is the format of QLoRA, and "int8" that of LLM.int8().
"""


def pack(model: LanguageModule, quantize: Quantization | None = None) -> LanguageModule:
    """Pack or quantise the linear layers of the blocks and the vocabulary heads, in place.

    If `quantize` is None, the weights keep their values, but are stored in the memory layout that a
    CPU multiplies fastest. A weight matrix stays unpacked if oneDNN has no kernel for it: on a GPU,
    for float16, and for bfloat16 on a CPU without bfloat16 instructions. If `quantize` is "int8",
    weights are rounded to 8 bits with one scale per output feature. If it is "nf4", the weights of
    the blocks become 4-bit NormalFloat with double quantization (QLoRA). The cells of recurrent
    networks are not changed. With "nf4", neither are vocabulary heads. A head that is tied to the
    token embeddings gets its own copy of them. Do not combine packing with `torch.compile`, which
    packs weights itself. A LoRA adapter is kept as it is; only the weights that it updates are
    packed or quantised.

    Returns the model, which can no longer be trained or saved.

    Raises:
        SpecError: the weights are already packed or quantised.
        MissingExtraError: bitsandbytes is not installed, which "nf4" needs.
    """
    if any(is_quantized(module) for module in model.modules()):
        raise SpecError("this model is packed or quantised already: load it again.")
    if quantize == "nf4":
        quantize_base(model, "nf4", model.device)
        return model
    _replace_linear_layers(model, lambda weight, bias: _pack(weight, bias, quantize))
    for head in model.heads.values():
        if isinstance(head, VocabularyHead):
            head.packed = _pack(model.output_matrix(head), head.bias, quantize)
            if head.packed is not None:
                head.weight = None
    return model


def quantize_base(model: LanguageModule, kind: BaseQuantization, device: torch.device) -> None:
    """Quantise the linear layers of the blocks with bitsandbytes, in place.

    An adapter can be trained on the quantised weights, which are frozen. Each matrix is moved to
    `device` and quantised there, so that the device never holds all matrices in full precision.
    Embeddings, norms and heads are not quantised. Source: Dettmers et al. 2023 for "nf4", with
    double quantization; Dettmers et al. 2022 for "int8".

    Raises:
        MissingExtraError: bitsandbytes is not installed.
    """
    if model.device.type == "meta":
        return
    layer = NF4Linear if kind == "nf4" else LLMInt8Linear
    _replace_linear_layers(model, lambda weight, bias: layer(weight, bias, device))


def _replace_linear_layers(
    model: LanguageModule, make: Callable[[Tensor, Tensor | None], nn.Module | None]
) -> None:
    """Replace the linear layers W x + b of the blocks with `make(W, b)`, unless this is None.

    An adapted layer keeps its update, and gets `make(W, b)` as its new base.
    """
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and id(layer) in blocks:
            replaced = make(layer.weight, layer.bias)
            if replaced is None:
                continue
            replaced.train(layer.training)
            if isinstance(layer, LoRALinear):
                replaced = layer.with_base(replaced)
            replace_module(model, name, replaced)


def _pack(weight: Tensor, bias: Tensor | None, quantize: Quantization | None) -> nn.Module | None:
    """Return a packed or quantised linear layer W x + b, or None if W cannot be packed."""
    if quantize == "int8":
        return Int8Linear(weight, bias)
    return PackedLinear(weight, bias) if PackedLinear.supports(weight) else None
