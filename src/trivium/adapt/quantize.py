"""Pack weights in oneDNN's memory layout, or quantise them to 8 bits, for inference."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from trivium.adapt.lora import LoRALinear, replace_module
from trivium.errors import SpecError
from trivium.models import LanguageModule
from trivium.models.heads.vocabulary import VocabularyHead
from trivium.nn.packed_linear import Int8Linear, PackedLinear

Quantization = Literal["int8"]


def pack(model: LanguageModule, quantize: Quantization | None = None) -> LanguageModule:
    """Pack or quantise the linear layers of the blocks and the vocabulary heads, in place.

    If `quantize` is None, the weights keep their values, but are stored in the memory layout that a
    CPU multiplies fastest. A weight matrix stays unpacked if oneDNN has no kernel for it: on a GPU,
    for float16, and for bfloat16 on a CPU without bfloat16 instructions. If `quantize` is "int8",
    weights are rounded to 8 bits with one scale per output feature. The cells of recurrent networks
    stay unchanged. A head that is tied to the token embeddings gets its own copy of them. Do not
    combine packing with `torch.compile`, which packs weights itself.

    A LoRA adapter is kept as it is; only the weights that it updates are packed or quantised.

    Returns the model, which can no longer be trained or saved.

    Raises:
        SpecError: the weights are already packed or quantised.
    """
    for module in model.modules():
        if isinstance(module, PackedLinear | Int8Linear):
            raise SpecError("this model is packed or quantised already: load it again.")
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and id(layer) in blocks:
            packed = _pack(layer.weight, layer.bias, quantize)
            if packed is not None and isinstance(layer, LoRALinear):
                packed = layer.with_base(packed)
            if packed is not None:
                replace_module(model, name, packed)
    for head in model.heads.values():
        if isinstance(head, VocabularyHead):
            head.packed = _pack(model.output_matrix(head), head.bias, quantize)
            if head.packed is not None:
                head.weight = None
    return model


def _pack(weight: Tensor, bias: Tensor | None, quantize: Quantization | None) -> nn.Module | None:
    """Return a packed or quantised linear layer W x + b, or None if W cannot be packed."""
    if quantize == "int8":
        return Int8Linear(weight, bias)
    return PackedLinear(weight, bias) if PackedLinear.supports(weight) else None
