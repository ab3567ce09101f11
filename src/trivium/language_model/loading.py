"""Finding a model and making it ready: a run, a checkpoint, or a Hugging Face folder or name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

import torch

from trivium.adapt.quantize import pack
from trivium.adapt.quantize import quantize as quantize_weights
from trivium.errors import TriviumError, did_you_mean
from trivium.inference.saved import model_folder, read_source_tokenizer, read_spec, read_weights
from trivium.interop.folder import is_hugging_face, read_folder
from trivium.interop.hub import find_folder
from trivium.interop.settings import Settings
from trivium.interop.tokenizer import read_tokenizer
from trivium.language_model.model import LanguageModel
from trivium.models import build
from trivium.nn.huge_pages import use_huge_pages
from trivium.nn.quantized import Bits

Precision = Literal["float32", "bfloat16", "float16"]
"""Names of precisions that weights may have."""

Weights = Literal["int8", "int4"]
"""Names of what weights may be quantised to."""

_LARGE = 2**26  # Bytes of weights for which moving them is worth the wait.
_BITS: dict[str, Bits] = {"int8": 8, "int4": 4}


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | Precision | None = None,
    lowercase: bool | None = None,
    quantize: Weights | None = None,
    packed: bool = False,
    compiled: bool = False,
) -> LanguageModel:
    """A model from a run, a checkpoint, a folder that was saved, or from Hugging Face.

    A run that has not finished gives its last good checkpoint. What is no folder here is looked
    for on the Hugging Face hub, or in what was fetched from there before.

    Args:
        path: a folder of ours or of `transformers`, or a name on the hub such as "org/name".
        device: "auto" is a GPU where there is one, else the CPU.
        dtype: precision of the weights, or its name; None: as stored.
        lowercase: for a `vocab.txt` of theirs that does not say whether it is lower-cased.
        quantize: keep weights in 8 or 4 bits: a smaller model that writes faster on a CPU, and
            cannot be saved; `trivium eval --quantize` says what it costs.
        packed: put the matrices in the order that the kernels of a CPU read fastest, for a model
            that only writes or answers: it cannot be trained or saved.
        compiled: for a decoder that writes on a CPU, compile its layers for one more token of each
            text: a step takes half to four fifths of the time. Compiling takes 20 to 130
            seconds, the first time for layers of these sizes, and needs a C++ compiler.
            Packed matrices that compiled sums read are kept twice then.

    Raises:
        CheckpointError: no model there, a damaged one, one that is not supported, or weights that
            do not match its description.
        SpecError: a model that cannot be quantised.
        TriviumError: a word that is not known, a device that cannot be used, or no compiling there.
    """
    if quantize is not None and quantize not in _BITS:
        raise TriviumError(
            f'quantize is "{quantize}", but must be one of {", ".join(_BITS)}.'
            f"{did_you_mean(quantize, _BITS)}"
        )
    precision = _precision(dtype)
    found = _load(find_folder(path), lowercase)
    found.module.to(device=_device(device), dtype=precision)
    size = sum(weight.nbytes for weight in found.module.parameters())
    if quantize is not None:
        quantize_weights(found.module, _BITS[quantize])
    elif packed:
        pack(found.module)
    if compiled:
        found.module.compile_step()
    if (quantize or packed) and found.module.device.type == "cpu" and size >= _LARGE:
        use_huge_pages()
    return found


def _load(folder: Path, lowercase: bool | None) -> LanguageModel:
    if is_hugging_face(folder):
        theirs = read_folder(folder, lowercase=lowercase)
        return LanguageModel(theirs.module.spec, theirs.module, theirs.tokenizer, theirs.settings)
    folder = model_folder(folder)
    spec, settings = read_spec(folder), Settings.read(folder)
    module = build(spec, device="meta")
    module.load_state_dict(read_weights(folder, module), assign=True)
    return LanguageModel(
        spec,
        module,
        read_tokenizer(folder, settings.tokenizer),
        settings,
        own_source_tokenizer=read_source_tokenizer(folder),
    )


def _precision(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if not isinstance(dtype, str):
        return dtype
    if dtype not in get_args(Precision):
        known = ", ".join(get_args(Precision))
        raise TriviumError(f'dtype is "{dtype}", but must be one of {known}.')
    return getattr(torch, dtype)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TriviumError(f"device {str(device)!r} cannot be used: {reason}") from None
