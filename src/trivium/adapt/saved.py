"""An adapter on the disk, apart from its base: `adapter.safetensors` and `adapter.json`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trivium.adapt.lora import LoRA, adapted_layers, adapter_state, add_lora, trained_parameters
from trivium.errors import CheckpointError, SpecError
from trivium.models import LanguageModule

FORMAT_VERSION = 1
WEIGHTS, DESCRIPTION = "adapter.safetensors", "adapter.json"
# Numbers of each matrix that tell one base from another.
_SAMPLE = 1024


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / DESCRIPTION).is_file()


def save_adapter(
    folder: Path, model: LanguageModule, lora: LoRA, *, base: str | None = None
) -> Path:
    """Write what training has made, each file aside and renamed; the weights last.

    Args:
        folder: made where there is none; other files in it stay.
        model: one that `add_lora(model, lora)` has adapted.
        lora: the same description.
        base: where the base came from, for whoever loads the adapter.

    Raises:
        CheckpointError: the folder cannot be written.
        SpecError: the model has no adapter.
    """
    state = {name: w.contiguous() for name, w in adapter_state(model, lora).items()}
    adapted = [name.removesuffix(".lora_a") for name in state if name.endswith(".lora_a")]
    if not adapted:
        raise SpecError("this model has no LoRA adapter to save.")
    description = {
        "format": FORMAT_VERSION,
        "lora": lora.model_dump(mode="json"),
        "base": {"name": base, **_fingerprint(model, adapted, state.keys())},
    }
    write_pair(folder, DESCRIPTION, description, WEIGHTS, state)
    return folder


def write_pair(
    folder: Path,
    description_name: str,
    description: Mapping[str, Any],
    weights_name: str,
    tensors: dict[str, Tensor],
) -> None:
    """Write a description and tensors, each file aside and renamed; the tensors last.

    Raises CheckpointError where the folder cannot be written.
    """
    partials = {name: folder / f".{name}.partial" for name in (description_name, weights_name)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dict(description), indent=1, ensure_ascii=False) + "\n"
        partials[description_name].write_text(text, encoding="utf-8")
        save_file(tensors, partials[weights_name], metadata={"format": "pt"})
        partials[weights_name].chmod(0o644)  # safetensors makes files that only the owner reads
        for name, partial in partials.items():
            os.replace(partial, folder / name)
    except (OSError, SafetensorError) as error:
        for partial in partials.values():
            with contextlib.suppress(OSError):
                partial.unlink()
        raise CheckpointError(f"{folder}: the adapter cannot be saved: {error}.") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of an adapter. Raises CheckpointError where they cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}.") from None


def load_adapter(folder: Path, model: LanguageModule) -> LoRA:
    """Adapt a base model, in place, as it was when the adapter was saved; `merge_lora` may follow.

    A base of the same shapes with other numbers is warned of.

    Raises:
        CheckpointError: files that are missing or damaged, or made for another model. The model is
            as it was then.
    """
    lora, base = _read_description(folder)
    file = folder / WEIGHTS
    tensors = read_tensors(file)
    made_for = f' It was made for "{base["name"]}".' if base.get("name") else ""
    try:
        wanted = _shapes(model, lora)
        layers = list(adapted_layers(model, lora))
    except SpecError as error:
        raise CheckpointError(f"{folder}: does not fit this model: {error}{made_for}") from None
    _check(file, {name: list(w.shape) for name, w in tensors.items()}, wanted, made_for)
    found = _fingerprint(model, layers, wanted.keys())
    if found["dtype"] == base.get("dtype") and found["digest"] != base.get("digest"):
        warnings.warn(
            f"{folder}: the weights of this model are not those the adapter was trained with, "
            f"though their shapes are.{made_for}",
            stacklevel=2,
        )
    add_lora(model, lora)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)
    return lora


def _read_description(folder: Path) -> tuple[LoRA, dict[str, Any]]:
    file = folder / DESCRIPTION
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version, lora, base = data["format"], data["lora"], data["base"]
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no adapter inside: {DESCRIPTION} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: not the description of an adapter: {error!r}.") from None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{file}: adapter format {version}, but this version reads {FORMAT_VERSION}."
        )
    try:
        return LoRA(**lora), dict(base)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: not the description of an adapter: {error}") from None


def _shapes(model: LanguageModule, lora: LoRA) -> dict[str, list[int]]:
    """Names and shapes of the adapter that `add_lora` would give the model."""
    shapes = {
        name: list(model.get_parameter(name).shape) for name in trained_parameters(model, lora)
    }
    for name, layer in adapted_layers(model, lora).items():
        shapes[f"{name}.lora_a"] = [lora.rank, layer.in_features]
        shapes[f"{name}.lora_b"] = [layer.out_features, lora.rank]
    return shapes


def _check(
    file: Path, found: dict[str, list[int]], wanted: dict[str, list[int]], made_for: str
) -> None:
    for name, shape in found.items():
        if name not in wanted:
            raise CheckpointError(
                f"{file}: {name} has no place in this model: it is not the adapter's base."
                f"{made_for}"
            )
        if wanted[name] != shape:
            raise CheckpointError(
                f"{file}: {name} is {shape}, but in this model it is {wanted[name]}: it is not the "
                f"adapter's base.{made_for}"
            )
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise CheckpointError(
            f"{file}: {missing[0]} is missing, which this model has: it is not the adapter's base."
            f"{made_for}"
        )


def _fingerprint(model: LanguageModule, layers: list[str], trained: Any) -> dict[str, str]:
    """A digest of some numbers of the adapted matrices, and their precision."""
    digest = hashlib.sha256()
    names = sorted(f"{name}.weight" for name in layers)
    for name in names:
        if name not in trained:
            weight: Tensor = model.get_parameter(name).detach().flatten()
            sample = weight[:: max(1, weight.numel() // _SAMPLE)].to("cpu", torch.float64)
            digest.update(name.encode() + sample.numpy().tobytes())
    dtype = str(model.get_parameter(names[0]).dtype).removeprefix("torch.")
    return {"dtype": dtype, "digest": digest.hexdigest()}
