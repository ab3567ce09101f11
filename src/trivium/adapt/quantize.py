"""Weights for inference: in oneDNN's packed order, or quantised to 8 bits."""

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
    """Replace the matrices of the blocks and of the vocabulary head, in place, for inference.

    Without `quantize` they keep their numbers in the order that a CPU multiplies fastest; where
    there is no such product (a GPU, a CPU without bfloat16) a matrix stays as it is. The cells of a
    recurrent network stay in any case. "int8" rounds weights to 8 bits with a scale per output.
    A head tied to the token vectors gets a copy of them. The model can be neither trained nor saved
    then, and is not for `torch.compile`, which packs by itself.

    Raises:
        SpecError: a model with a LoRA adapter, or packed already.
    """
    for module in model.modules():
        if isinstance(module, LoRALinear):
            raise SpecError(
                "this model has a LoRA adapter: load its merged_state into a new one first."
            )
        if isinstance(module, PackedLinear | Int8Linear):
            raise SpecError("this model is packed or quantised already: load it again.")
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and id(layer) in blocks:
            packed = _packed(layer.weight, layer.bias, quantize)
            if packed is not None:
                replace_module(model, name, packed)
    for head in model.heads.values():
        if isinstance(head, VocabularyHead):
            head.packed = _packed(model.matrix_of(head), head.bias, quantize)
            if head.packed is not None:
                head.weight = None
    return model


def _packed(weight: Tensor, bias: Tensor | None, quantize: Quantization | None) -> nn.Module | None:
    if quantize == "int8":
        return Int8Linear(weight, bias)
    return PackedLinear(weight, bias) if PackedLinear.supports(weight) else None
