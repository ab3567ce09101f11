"""Model -> model: LoRA, freezing, and weights packed or quantised for inference."""

from __future__ import annotations

from trivium.adapt.freezing import ParameterCounts, count_parameters, freeze
from trivium.adapt.lora import LoRA, LoRALinear, add_lora, merged_state
from trivium.adapt.quantize import pack

__all__ = [
    "LoRA",
    "LoRALinear",
    "ParameterCounts",
    "add_lora",
    "count_parameters",
    "freeze",
    "merged_state",
    "pack",
]
