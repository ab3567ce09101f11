"""Adapt a model: LoRA adapters, frozen parameters, and packed or quantised weights."""

from __future__ import annotations

from trivium.adapt.freezing import ParameterCounts as ParameterCounts
from trivium.adapt.freezing import count_parameters as count_parameters
from trivium.adapt.freezing import freeze as freeze
from trivium.adapt.lora import LoRA as LoRA
from trivium.adapt.lora import LoRALinear as LoRALinear
from trivium.adapt.lora import add_lora as add_lora
from trivium.adapt.lora import merged_state as merged_state
from trivium.adapt.quantize import pack as pack
