"""Model -> model: LoRA, and freezing of parts."""

from __future__ import annotations

from trivium.adapt.freezing import freeze
from trivium.adapt.lora import LoRA, LoRALinear, adapter_state, add_lora, merge_lora, merged_state
from trivium.adapt.parameters import ParameterCounts
from trivium.adapt.peft_format import is_peft, load_peft, save_peft
from trivium.adapt.saved import is_adapter, load_adapter, save_adapter

__all__ = [
    "LoRA",
    "LoRALinear",
    "ParameterCounts",
    "adapter_state",
    "add_lora",
    "freeze",
    "is_adapter",
    "is_peft",
    "load_adapter",
    "load_peft",
    "merge_lora",
    "merged_state",
    "save_adapter",
    "save_peft",
]
