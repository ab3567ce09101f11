"""MXFP4: matrices of four-bit floating-point numbers, with one scale for every 32 of them.

Source: Open Compute Project 2023 (OCP Microscaling Formats 1.0), sections 5.3.3 and 5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

import torch
from torch import Tensor

from trivium.lazy_tensors import LazyTensors, combine

_BLOCKS, _SCALES = "_blocks", "_scales"
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127


def unpack_mxfp4(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors of a file. An MXFP4 matrix is unpacked when it is looked up.

    The matrices get the dtype of the file's other numbers, which is bfloat16 in published files.

    A matrix NAME is stored as NAME_blocks, uint8 [..., O, I / 32, 16], and NAME_scales, uint8
    [..., O, I / 32]. The result has NAME, [..., I, O], as files without packed numbers do.
    """
    packed = [name.removesuffix(_BLOCKS) for name in tensors if name.endswith(_BLOCKS)]
    packed = [name for name in packed if name + _SCALES in tensors]
    dtypes = (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    dtype = next(dtypes, torch.bfloat16)

    @lru_cache(maxsize=2)  # the experts of a layer have two matrices, which are read in turn
    def unpack(name: str) -> Tensor:
        """Return the matrix with a name, unpacked."""
        blocks, scales = tensors[name + _BLOCKS], tensors[name + _SCALES]
        return unpack_blocks(blocks, scales, dtype).transpose(-2, -1)

    parts = {name + part for name in packed for part in (_BLOCKS, _SCALES)}
    others = {name: tensor for name, tensor in tensors.items() if name not in parts}
    return combine(others, LazyTensors({name: partial(unpack, name) for name in packed}))


def unpack_blocks(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers of packed blocks, [..., O, I].

    Args:
        blocks: uint8 [..., O, I / 32, 16]; the lower four bits of a byte come first.
        scales: uint8 [..., O, I / 32], the exponent of two of each block, plus 127.
        dtype: the dtype of the result. bfloat16 can represent all numbers of MXFP4.
    """
    unpacked = torch.empty(*scales.shape, 32, dtype=dtype, device=blocks.device)
    if blocks.is_meta:
        return unpacked.flatten(-2)
    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)], device=blocks.device)
    exponents = scales.int()[..., None] - _EXPONENT_BIAS
    for place, some, by in zip(unpacked, blocks, exponents, strict=True):  # one matrix at a time
        numbers = torch.stack((some & 15, some >> 4), -1).flatten(-2).int()
        place.copy_(torch.ldexp(values[numbers], by))
    return unpacked.flatten(-2)
