"""Trivium: from raw text to a working language model.

>>> import trivium
>>> trivium.presets["bert-base"].family
'encoder-only'
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from trivium.errors import TriviumError, did_you_mean

if TYPE_CHECKING:
    __version__: str
    from trivium.language_model import LanguageModel, load
    from trivium.models import build
    from trivium.presets import presets
    from trivium.spec import ModelSpec
    from trivium.text import Tokenizer
    from trivium.workflows.finetune import finetune
    from trivium.workflows.pretrain import pretrain

__all__ = [
    "LanguageModel",
    "ModelSpec",
    "Tokenizer",
    "TriviumError",
    "__version__",
    "build",
    "finetune",
    "load",
    "presets",
    "pretrain",
]

# Public name -> the module that has it, imported when first asked for: torch takes seconds.
_HOMES = {
    "LanguageModel": "trivium.language_model",
    "ModelSpec": "trivium.spec",
    "Tokenizer": "trivium.text",
    "build": "trivium.models",
    "finetune": "trivium.workflows.finetune",
    "load": "trivium.language_model",
    "pretrain": "trivium.workflows.pretrain",
}


class _Package(types.ModuleType):
    """This package; `presets` is always the mapping, also after `trivium.presets` is imported."""

    @property
    def presets(self) -> Any:
        """Name -> ModelSpec."""
        return importlib.import_module("trivium.presets").presets

    @presets.setter
    def presets(self, module: types.ModuleType) -> None:
        """What importing the module of that name would put here."""


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("trivium")
    if name not in _HOMES:
        known = did_you_mean(name, __all__)
        raise AttributeError(f"module 'trivium' has no attribute {name!r}.{known}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
