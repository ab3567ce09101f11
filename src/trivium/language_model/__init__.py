"""The object a user holds, and how it is found."""

from __future__ import annotations

from trivium.language_model.loading import load
from trivium.language_model.model import LanguageModel
from trivium.language_model.writing import GenerateOptions

__all__ = ["GenerateOptions", "LanguageModel", "load"]
