"""Matrices for inference alone: in the order that kernels read fastest, or in fewer bits.

All else stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trivium.adapt.lora import LoRALinear
from trivium.errors import SpecError
from trivium.models import LanguageModule, RecurrentModel
from trivium.models.headed import WideEmbedding
from trivium.models.heads import VocabularyHead
from trivium.models.transformer import Block
from trivium.nn.inference_linear import InferenceLinear, PackedLinear
from trivium.nn.quantized import Bits, quantized_linear


class Quantization(NamedTuple):
    """What became smaller.

    Args:
        bits: of a weight.
        matrices: how many were quantised; those that read the same count as one.
        bytes_before: what they needed.
        bytes_after: what they need, with their scales.
    """

    bits: Bits
    matrices: int
    bytes_before: int
    bytes_after: int


def quantize(model: LanguageModule, bits: Bits = 8) -> Quantization:
    """Quantise every linear layer of the blocks and the product with the vocabulary, in place.

    Int8 has a scale for each output, int4 a scale and an offset for each 32 inputs of it. Token
    vectors, positions, norms, biases and heads of tasks stay as they are; a head tied to the token
    vectors gets a quantised copy of them. What layers read and write keeps its precision, but is
    float32 on a CPU. The model is for inference then: it can be neither trained nor saved.

    Raises:
        SpecError: a recurrent model, an adapted, packed or quantised one, or bits other than 8 and
            4. The model is as it was then.
    """
    if bits not in (8, 4):
        raise SpecError(f"weights are quantised to 8 or 4 bits, not to {bits}.")
    _check(model)
    size = _matrix_bytes(model)
    made = _replace(model, partial(quantized_linear, bits=bits))
    return Quantization(bits, len(made), size, sum(layer.num_bytes for layer in made))


def pack(model: LanguageModule) -> int:
    """Put the matrices of the blocks and of the vocabulary in the order of the CPU's kernels.

    Logits stay the same but for rounding, and come sooner: on two cores a step of decoding in
    bfloat16 takes about half as long. There only matrices and token vectors keep their 16 bits;
    what layers read and write is float32, which a CPU is faster with. The model is for inference
    then: it can be neither trained nor saved. A head tied to the token vectors gets a copy of them.
    Recurrent models, whose cells are PyTorch's own, and adapted ones stay as they are.

    Returns:
        How many products there are now; 0 for a model that stays as it is.
    """
    if isinstance(model, RecurrentModel) or _special(model):
        return 0
    return len(_replace(model, PackedLinear))


def _replace(
    model: LanguageModule, make: Callable[[Tensor, nn.Parameter | None], InferenceLinear]
) -> list[InferenceLinear]:
    """Put what `make` makes into the place of every matrix of the blocks and vocabulary heads."""
    made: list[InferenceLinear] = []

    def remember(weight: Tensor, bias: nn.Parameter | None) -> InferenceLinear:
        made.append(make(weight, bias).train(model.training))
        return made[-1]

    for block in model.blocks:
        if isinstance(block, Block):
            block.join(remember)
    for name, layer in _layers(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, remember(layer.weight, layer.bias))
    for head in model.heads.values():
        if isinstance(head, VocabularyHead):
            table = model.tokens.weight if head.weight is None else head.weight
            head.product, head.weight = remember(table, head.bias), None
    if model.device.type == "cpu" and model.dtype != torch.float32:
        _widen(model)
    return made


def _widen(model: LanguageModule) -> None:
    """On a CPU all but matrices and token vectors in float32: short numbers are slower there.

    So a layer is not followed by roundings either, each of which takes as long as a small product.
    """
    for name, module in list(model.named_children()):
        if isinstance(module, nn.Embedding):
            setattr(model, name, WideEmbedding(module))
    for module in model.modules():
        if not isinstance(module, InferenceLinear | WideEmbedding):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.float()


def _layers(model: LanguageModule) -> dict[str, nn.Linear]:
    """The linear layers of the blocks, by path."""
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in blocks
    }


def _matrix_bytes(model: LanguageModule) -> int:
    heads = (head for head in model.heads.values() if isinstance(head, VocabularyHead))
    tables = (model.tokens.weight if head.weight is None else head.weight for head in heads)
    layers = (layer.weight for layer in _layers(model).values())
    return sum(matrix.nbytes for matrix in (*layers, *tables))


def _check(model: LanguageModule) -> None:
    if isinstance(model, RecurrentModel):
        raise SpecError(
            "the matrices of a recurrent model are inside PyTorch's own cells and cannot be "
            "quantised: load it as it is."
        )
    special = _special(model)
    if special is not None:
        raise SpecError(special)


def _special(model: LanguageModule) -> str | None:
    """Why the matrices of a model cannot be replaced."""
    modules = list(model.modules())
    if any(isinstance(module, InferenceLinear) for module in modules):
        return "this model is packed or quantised already."
    if any(isinstance(module, LoRALinear) for module in modules):
        return "this model has a LoRA adapter: merge it first (trivium.adapt.merge_lora)."
    return None
