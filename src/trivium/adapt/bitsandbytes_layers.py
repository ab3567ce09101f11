"""Linear layers with weights that bitsandbytes has quantised, as the frozen base of an adapter.

Importing this module imports bitsandbytes. The weights are not part of a `state_dict`: they are
frozen, and are quantised again from the base model whenever the model is built.

Shape letters: I inputs, O outputs.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # warns about kernels that are optional
import bitsandbytes  # noqa: E402

bnb: Any = bitsandbytes  # its types do not name what its parameters have


class NF4Linear(bnb.nn.Linear4bit):
    """W x + b with W in 4-bit NormalFloat with double quantization (Dettmers et al. 2023, QLoRA).

    Args:
        weight: W [O, I], in any floating-point dtype. It is quantised on `device`.
        bias: b [O], or None.
        device: the device of the layer.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        outputs, inputs = weight.shape
        options = {"compress_statistics": True, "quant_type": "nf4"}
        super().__init__(inputs, outputs, bias=False, device="meta", **options)
        self.weight = bnb.nn.Params4bit(
            weight.detach(), requires_grad=False, module=self, **options
        )
        self.register_parameter("bias", _frozen(bias))
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + b: [..., I] -> [..., O].

        Unlike the method of the base class, this does not round b to the dtype of x for good, and
        never converts W to a layout of some CPUs that cannot be trained with.
        """
        weight = self.weight
        y = bnb.matmul_4bit(x, weight.t(), quant_state=weight.quant_state)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def dequantize(self) -> Tensor:
        """Return W [O, I] as it is used, in the dtype that it had before."""
        return bnb.functional.dequantize_4bit(self.weight.data, self.weight.quant_state)

    def _save_to_state_dict(self, *args: Any, **options: Any) -> None:
        """Save nothing."""

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        """Load nothing."""


class LLMInt8Linear(bnb.nn.Linear8bitLt):
    """W x + b with W in 8 bits and one scale per output (Dettmers et al. 2022, LLM.int8()).

    Inputs are quantised, too, except features with values of at least 6, as in the paper.

    Args:
        weight: W [O, I], in any floating-point dtype. It is quantised on `device`.
        bias: b [O], or None.
        device: the device of the layer.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        outputs, inputs = weight.shape
        super().__init__(
            inputs, outputs, bias=False, has_fp16_weights=False, threshold=6.0, device="meta"
        )
        self.weight = bnb.nn.Int8Params(
            weight.detach(), requires_grad=False, has_fp16_weights=False
        )
        self.register_parameter("bias", _frozen(bias))
        self._dtype = weight.dtype
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + b: [..., I] -> [..., O].

        Unlike the method of the base class, this does not round b to the dtype of x for good.
        """
        self.state.is_training = self.training
        if self.weight.CB is not None:
            self.init_8bit_state()
        y = bnb.matmul(x, self.weight, state=self.state)
        self.weight.data = self.state.CB
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def dequantize(self) -> Tensor:
        """Return W [O, I] as it is used, in the dtype that it had before."""
        codes = self.weight.data
        scale = self.weight.SCB if self.weight.SCB is not None else self.state.SCB
        assert scale is not None
        return (codes.float() * (scale.float() / 127)[:, None]).to(self._dtype)

    def _save_to_state_dict(self, *args: Any, **options: Any) -> None:
        """Save nothing."""

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        """Load nothing."""


def _frozen(bias: Tensor | None) -> nn.Parameter | None:
    """Return the bias as a parameter that is not trained."""
    return None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
