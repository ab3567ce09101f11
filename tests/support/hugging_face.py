"""Random `transformers` models, and the same models here, for any family."""

from __future__ import annotations

from typing import Any

import torch

from trivium.interop.convert import from_hugging_face
from trivium.models import Transformer


def randomize(hf_model: Any, seed: int, std: float = 0.3) -> Any:
    """Draw every weight anew, norms and biases included, so that no term of a formula is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in hf_model.named_parameters():
            if weight.requires_grad:  # not sinusoids in a table
                noise = std * normal(weight.shape, generator)
                norm = weight.ndim == 1 and name.endswith("weight")
                weight.copy_(1.0 + noise if norm else noise)
    return hf_model.eval()


def normal(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers, the same in every precision: float64 ones are drawn otherwise."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def options_of(hf_model: Any) -> dict[str, Any]:
    """The `config.json` that `save_pretrained` would write."""
    return {**hf_model.config.to_dict(), "architectures": [type(hf_model).__name__]}


def ours_of(hf_model: Any) -> Transformer:
    """The same model as ours, without a file between."""
    tensors = {name: tensor.detach() for name, tensor in hf_model.state_dict().items()}
    return from_hugging_face(options_of(hf_model), tensors).eval()
