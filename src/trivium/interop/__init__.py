"""Hugging Face models in and out."""

from __future__ import annotations

from trivium.interop.convert import FAMILIES, from_hugging_face, to_hugging_face

__all__ = ["FAMILIES", "from_hugging_face", "to_hugging_face"]
