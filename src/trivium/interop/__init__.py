"""Hugging Face models in and out."""

from __future__ import annotations

from trivium.interop.convert import (
    config_of,
    from_hugging_face,
    hf_weights,
    is_expressible,
    to_hugging_face,
)
from trivium.interop.families import FAMILIES
from trivium.interop.hf_folder import HFModel, is_hf_folder, read_folder, write_folder
from trivium.interop.hub import find_folder
from trivium.interop.peft_format import load_adapter, save_adapter
from trivium.interop.settings import Settings

__all__ = [
    "FAMILIES",
    "HFModel",
    "Settings",
    "config_of",
    "find_folder",
    "from_hugging_face",
    "hf_weights",
    "is_expressible",
    "is_hf_folder",
    "load_adapter",
    "read_folder",
    "save_adapter",
    "to_hugging_face",
    "write_folder",
]
