"""Trivium: from raw text to a working language model.

>>> import trivium
>>> trivium.presets["bert-base"].family
'encoder-only'
"""

from __future__ import annotations

import importlib as _importlib
import sys as _sys
import types as _types
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from trivium.errors import TriviumError
from trivium.errors import did_you_mean as _did_you_mean

if _TYPE_CHECKING:
    __version__: str
    from trivium import nn, objectives, spec, text, train
    from trivium.language_model import LanguageModel
    from trivium.model_loading import load
    from trivium.models import build
    from trivium.models.transformer import TransformerSpec
    from trivium.presets import presets
    from trivium.text import Tokenizer
    from trivium.train import Callback
    from trivium.workflows.training import finetune, pretrain

__all__ = [
    "Callback",
    "LanguageModel",
    "Tokenizer",
    "TransformerSpec",
    "TriviumError",
    "__version__",
    "build",
    "finetune",
    "load",
    "nn",
    "objectives",
    "presets",
    "pretrain",
    "spec",
    "text",
    "train",
]

# Public name -> its module, imported at first use because importing torch takes seconds. The other
# public names are modules and packages.
_MODULES = {
    "Callback": "trivium.train",
    "LanguageModel": "trivium.language_model",
    "TransformerSpec": "trivium.models.transformer",
    "Tokenizer": "trivium.text",
    "build": "trivium.models",
    "finetune": "trivium.workflows.training",
    "load": "trivium.model_loading",
    "pretrain": "trivium.workflows.training",
}


class _Package(_types.ModuleType):
    """This package. `presets` stays the mapping when the module `trivium.presets` is imported."""

    @property
    def presets(self) -> _Any:
        """The presets, a mapping from name to TransformerSpec."""
        return _importlib.import_module("trivium.presets").presets

    @presets.setter
    def presets(self, module: _types.ModuleType) -> None:
        """Ignore the assignment that importing the module `trivium.presets` makes."""


_sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        return _importlib.import_module("importlib.metadata").version("trivium")
    if name not in __all__:
        hint = _did_you_mean(name, __all__)
        raise AttributeError(f"module 'trivium' has no attribute {name!r}.{hint}")
    if name not in _MODULES:
        return _importlib.import_module(f"trivium.{name}")
    value = getattr(_importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
