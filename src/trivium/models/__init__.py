"""Models: what a spec becomes."""

from __future__ import annotations

from typing import overload

import torch

from trivium.models.initialization import initialize
from trivium.models.ngram import NGramModel, initialize_ngram
from trivium.models.recurrent import RecurrentModel, initialize_recurrent
from trivium.models.transformer import Transformer
from trivium.spec import AnySpec, ModelSpec, NGramSpec, RNNSpec

__all__ = ["LanguageModule", "NGramModel", "RecurrentModel", "Transformer", "build"]

LanguageModule = Transformer | RecurrentModel | NGramModel
"""What objectives, the trainer and inference work with: any model there is."""


@overload
def build(spec: ModelSpec, *, seed: int = 0, device: torch.device | str = "cpu") -> Transformer: ...
@overload
def build(
    spec: RNNSpec, *, seed: int = 0, device: torch.device | str = "cpu"
) -> RecurrentModel: ...
@overload
def build(spec: NGramSpec, *, seed: int = 0, device: torch.device | str = "cpu") -> NGramModel: ...
@overload
def build(
    spec: AnySpec, *, seed: int = 0, device: torch.device | str = "cpu"
) -> LanguageModule: ...


def build(spec: AnySpec, *, seed: int = 0, device: torch.device | str = "cpu") -> LanguageModule:
    """The module that `spec` describes, initialised from `seed`, in float32.

    On device "meta" nothing is allocated: parameters have shapes and no numbers.
    """
    if str(device) == "meta":
        with torch.device("meta"):
            return _construct(spec)
    with torch.device("cpu"):
        model = _construct(spec)
    match model:
        case Transformer():
            initialize(model, seed)
        case RecurrentModel():
            initialize_recurrent(model, seed)
        case NGramModel():
            initialize_ngram(model, seed)
    return model.to(device)


def _construct(spec: AnySpec) -> LanguageModule:
    match spec:
        case ModelSpec():
            return Transformer(spec)
        case RNNSpec():
            return RecurrentModel(spec)
        case NGramSpec():
            return NGramModel(spec)
