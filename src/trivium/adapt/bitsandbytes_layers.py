"""Linear layers with weights quantised by bitsandbytes, for the frozen base of an adapter.

The weights are not part of a `state_dict`. They are frozen, and are quantised again from the base
model whenever the model is built.

Shape letters: I inputs, O outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trivium.errors import require_extra


class QuantizedLinear(nn.Linear):
    """Base class of linear layers W x + b with a quantised matrix W. Both W and b are frozen.

    Args:
        weight: W [O, I], in any floating-point dtype. It is quantised on `device`.
        bias: b [O], or None.
        device: the device of the layer.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        nn.Module.__init__(self)  # nn.Linear.__init__ would allocate another matrix
        self.out_features, self.in_features = weight.shape
        frozen = None if bias is None else nn.Parameter(bias.detach().to(device), False)
        self.register_parameter("bias", frozen)

    def dequantize(self) -> Tensor:
        """Return the dequantised matrix W [O, I], in the original dtype of W."""
        raise NotImplementedError

    def _save_to_state_dict(self, *args: Any, **options: Any) -> None:
        """Save nothing, because the weights are frozen."""

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        """Load nothing, because nothing is saved."""


class NF4Linear(QuantizedLinear):
    """W x + b with W in 4-bit NormalFloat with double quantization (Dettmers et al. 2023, QLoRA).

    The arguments are those of the base class.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        super().__init__(weight, bias, device)
        packed, self.quant_state = _import_bitsandbytes().functional.quantize_4bit(
            weight.detach().to(device).contiguous(), compress_statistics=True, quant_type="nf4"
        )
        self.weight = nn.Parameter(packed, requires_grad=False)
        self._attach_state()

    def _attach_state(self) -> None:
        """Attach the quantisation state to the packed weights, on the same device."""
        self.quant_state.to(self.weight.device)
        self.weight.quant_state = self.quant_state  # type: ignore[attr-defined]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NF4Linear:
        """Apply `fn` to the weights, and move their quantisation state to the same device."""
        super()._apply(fn, recurse)
        self._attach_state()
        return self

    def forward(self, input: Tensor) -> Tensor:
        """Return W x + b for the input x: [..., I] -> [..., O]."""
        y = _import_bitsandbytes().matmul_4bit(input, self.weight.t(), quant_state=self.quant_state)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def dequantize(self) -> Tensor:
        """Return the dequantised matrix W [O, I], in the original dtype of W."""
        return _import_bitsandbytes().functional.dequantize_4bit(self.weight.data, self.quant_state)


class LLMInt8Linear(QuantizedLinear):
    """W x + b with W in 8 bits and one scale per output (Dettmers et al. 2022, LLM.int8()).

    Inputs are quantised, too, except features with values of at least 6, as in the paper. When the
    layer is trained on a CPU, inputs are not quantised.

    The arguments are those of the base class.
    """

    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        super().__init__(weight, bias, device)
        bnb = _import_bitsandbytes()
        half = weight.detach().to(device, torch.float16).contiguous()
        codes, scale, _ = bnb.functional.int8_vectorwise_quant(half)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scale", scale.float())
        self.state = bnb.MatmulLtState()
        self.state.threshold, self.state.has_fp16_weights, self.state.use_pool = 6.0, False, True
        self._dtype = weight.dtype

    def forward(self, input: Tensor) -> Tensor:
        """Return W x + b for the input x: [..., I] -> [..., O]."""
        state = self.state
        state.is_training, state.CB, state.SCB = self.training, self.weight.data, self.scale
        y = _import_bitsandbytes().matmul(input, self.weight, state=state)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def dequantize(self) -> Tensor:
        """Return the dequantised matrix W [O, I], in the original dtype of W."""
        return (self.weight.float() * (self.scale.float() / 127)[:, None]).to(self._dtype)


def _import_bitsandbytes() -> Any:
    """Import bitsandbytes. The module is typed as Any, because its own type hints are incomplete.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
    """
    # It warns about optional kernels.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with require_extra("a base in 4 or 8 bits", "qlora"):
        import bitsandbytes

    return bitsandbytes
