"""Weight-only quantisation: the matrices of a model in 8 or 4 bits, all else as it is."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from trivium.adapt.lora import LoRALinear
from trivium.errors import SpecError
from trivium.models import LanguageModule, RecurrentModel
from trivium.models.heads import VocabularyHead
from trivium.nn.quantized import Bits, QuantizedLinear, quantized_linear


class Quantization(NamedTuple):
    """What became smaller.

    Args:
        bits: of a weight.
        matrices: how many were quantised.
        bytes_before: what they needed.
        bytes_after: what they need, with their scales.
    """

    bits: Bits
    matrices: int
    bytes_before: int
    bytes_after: int


def quantize(model: LanguageModule, bits: Bits = 8) -> Quantization:
    """Quantise every linear layer of the blocks and the product with the vocabulary, in place.

    Int8 has a scale for each output, int4 a scale and an offset for each 32 inputs of it. What
    layers read and write keeps its precision. Token vectors, positions, norms, biases and heads of
    tasks stay as they are; a head tied to the token vectors gets a quantised copy of them. The
    model is for inference then: it can be neither trained nor saved.

    Raises:
        SpecError: a recurrent model, an adapted or quantised one, or bits other than 8 and 4. The
            model is as it was then.
    """
    _check(model, bits)
    layers = _layers(model)
    heads = [head for head in model.heads.values() if isinstance(head, VocabularyHead)]
    before = after = 0
    for name, layer in layers.items():
        found = quantized_linear(layer.weight, layer.bias, bits)
        before, after = before + layer.weight.nbytes, after + found.num_bytes
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, found.train(layer.training))
    for head in heads:
        table = model.tokens.weight if head.weight is None else head.weight
        head.quantized = quantized_linear(table, head.bias, bits).train(head.training)
        before, after = before + table.nbytes, after + head.quantized.num_bytes
        head.weight = None
    return Quantization(bits, len(layers) + len(heads), before, after)


def _layers(model: LanguageModule) -> dict[str, nn.Linear]:
    """The linear layers of the blocks, by path."""
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in blocks
    }


def _check(model: LanguageModule, bits: int) -> None:
    if bits not in (8, 4):
        raise SpecError(f"weights are quantised to 8 or 4 bits, not to {bits}.")
    if isinstance(model, RecurrentModel):
        raise SpecError(
            "the matrices of a recurrent model are inside PyTorch's own cells and cannot be "
            "quantised: load it as it is."
        )
    if any(isinstance(module, QuantizedLinear) for module in model.modules()):
        raise SpecError("this model is quantised already.")
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise SpecError("this model has a LoRA adapter: merge it first (trivium.adapt.merge_lora).")
