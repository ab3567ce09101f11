"""Save LoRA adapters in PEFT's format: `adapter_config.json`, `adapter_model.safetensors`.

Weights have the names of the Hugging Face family that the model is exported as, so that `peft`
can load the adapter. A model that no family can express keeps its own weight names, and
`auto_mapping` in the configuration names its class.

A matrix that the family fuses (GPT-2's QKV) consists of several matrices of the module: their LoRA
matrices A are stacked, and the fused B is block-diagonal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trivium.adapt.lora import LoRA, LoRALinear, adapted_layers, trainable_names
from trivium.errors import SpecError
from trivium.files import write_json
from trivium.interop.convert import exported_spec, hf_weight_map, is_expressible, to_hf_config
from trivium.interop.family import Family
from trivium.interop.tensor_files import write_safetensors
from trivium.interop.weight_map import HFWeight
from trivium.models import LanguageModule, Transformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


def save_adapter(
    folder: Path,
    model: LanguageModule,
    lora: LoRA,
    *,
    base: str | None = None,
    model_type: str | None = None,
) -> None:
    """Write a model's adapter, and the parameters that are fully trained alongside the adapter.

    Args:
        folder: the folder to write to, created if missing.
        model: a model to which `add_lora(model, lora)` has added an adapter.
        lora: the settings of this adapter.
        base: path or hub name of the base model.
        model_type: the Hugging Face family of the base model, if it was imported.

    Raises:
        SpecError: an adapter that PEFT cannot represent; raised before anything is written.
    """
    config, tensors = adapter_to_peft(model, lora, model_type)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, {**config, "base_model_name_or_path": base})
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})


def adapter_to_peft(
    model: LanguageModule, lora: LoRA, model_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert an adapter to PEFT. Returns its configuration and its tensors by PEFT name.

    `model_type` names the family whose names are preferred, as in `to_hf_config`.

    Heads that no Hugging Face class has (see `exported_spec`) have no PEFT name.

    Raises:
        SpecError: the model has no adapter, PEFT cannot adapt one of the adapted matrices, or a
            trained tensor is missing in the family or only a part of another tensor there.
    """
    spec = exported_spec(model.spec) if isinstance(model, Transformer) else None
    if spec is not None and is_expressible(spec):
        weights, extra = hf_weight_map(spec, model_type), {}
        family = to_hf_config(spec, model_type).family
        layers = {f"{name}.weight" for name in adapted_layers(model)}
        adapted = [weight for weight in weights if not layers.isdisjoint(weight.local)]
        paths = {weight.hf.removesuffix(".weight").rpartition(".")[::2] for weight in adapted}
        every = {weight.hf.removesuffix(".weight").rpartition(".")[::2] for weight in weights}
        for weight in adapted:
            if problem := _find_problem(weight, family, paths, every):
                raise SpecError(
                    f"PEFT cannot read an adapter of {weight.hf} ({family.model_type}): {problem}. "
                    f"Change the targets for {weight.local[0].removesuffix('.weight')}, or save no "
                    "separate adapter and export the merged model."
                )
    else:
        own = {"base_model_class": type(model).__name__, "parent_library": "trivium"}
        names = [name for name in model.state_dict() if not name.endswith((".lora_a", ".lora_b"))]
        weights, extra = [HFWeight(name, (name,)) for name in names], {"auto_mapping": own}
    config, tensors = _weights_to_peft(model, lora, weights)
    return {**config, **extra}, tensors


def _find_problem(
    weight: HFWeight,
    family: Family,
    adapted: Collection[tuple[str, ...]],
    every: Collection[tuple[str, ...]],
) -> str:
    """Return why PEFT cannot read the adapter of a matrix, or "" if PEFT can.

    transformers 5 fuses the matrices of all experts, and PEFT converts an adapter of them by the
    last parts of their names.

    Args:
        weight: a matrix that is adapted.
        family: the family of the model.
        adapted: the names of all adapted matrices, each as (its module, the last part).
        every: the names of all weights in the same form.
    """
    name = weight.hf.removesuffix(".weight")
    end, together = name.split(".")[-1], family.adapted_together
    if name == weight.hf or not {*name.split(".")}.isdisjoint(family.peft_unsupported):
        return "transformers does not use it as a linear layer"
    if end in together and not {last for _, last in adapted}.issuperset(together):
        return f"PEFT adapts all of {', '.join(together)} or none"
    if ".experts." not in name:
        return ""
    same = {path for path in adapted if path[1] == end}
    if any(".experts." not in module for module, _ in same):
        return f"PEFT cannot adapt both experts and other layers called {end}"
    if same != {path for path in every if path[1] == end and ".experts." in path[0]}:
        return "PEFT adapts the matrices of all experts or of none"
    return ""


def _weights_to_peft(
    model: LanguageModule, lora: LoRA, weights: list[HFWeight]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return PEFT's configuration and tensors for the LoRA adapter of a model.

    `weights` lists the names of all weights of the model in the file and in the module.
    """
    layers = {f"{name}.weight": layer for name, layer in adapted_layers(model).items()}
    if not layers:
        raise SpecError("the adapter of this model cannot be saved: it has none.")
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for weight in weights:
        if any(name in layers for name in weight.local):
            module = weight.hf.removesuffix(".weight")
            a, b = _fuse_lora(model, weight, layers)
            ranks[module] = len(a)
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = a
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = b
    whole = _modules_to_save(model, lora, weights)
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in whole.items()}
    rank = min(ranks.values())
    larger = {module: own for module, own in ranks.items() if own != rank}
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": lora.scale * rank,
        "lora_dropout": lora.dropout,
        "target_modules": _target_modules(
            ranks, [weight.hf.removesuffix(".weight") for weight in weights]
        ),
        "rank_pattern": larger,
        "alpha_pattern": {module: lora.scale * own for module, own in larger.items()},
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole}) or None,
        "fan_in_fan_out": any(weight.transposed for weight in weights),
        "bias": "none",
        "inference_mode": True,
    }
    return config, tensors


def _fuse_lora(
    model: LanguageModule, weight: HFWeight, layers: Mapping[str, LoRALinear]
) -> tuple[Tensor, Tensor]:
    """Return LoRA's A [k r, I] and B [O, k r] for a matrix that has k adapted parts of rank r."""
    a = torch.cat([layers[name].lora_a.detach() for name in weight.local if name in layers])
    blocks = [
        layers[name].lora_b.detach()
        if name in layers
        else a.new_zeros(len(model.get_parameter(name)), 0)
        for name in weight.local
    ]
    rows = torch.block_diag(*blocks).split([len(block) for block in blocks])
    return a, weight.fuse(rows)


def _modules_to_save(
    model: LanguageModule, lora: LoRA, weights: list[HFWeight]
) -> dict[str, Tensor]:
    """Return Hugging Face name -> fully trained parameter (PEFT's `modules_to_save`)."""
    left = set(trainable_names(model, lora))
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    written = [weight for weight in weights if left.issuperset(weight.local)]
    left -= {name for weight in written for name in weight.local}
    if left:
        raise SpecError(
            f"{min(left)} is trained beside the adapter, but the family has it only as a part of "
            "another tensor, or not at all: merge the adapter and export the whole model."
        )
    return {weight.hf: weight.join(state) for weight in written}


def _target_modules(chosen: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return PEFT's `target_modules` for the adapted modules: the last parts of their names.

    If another of the `known` modules has the same last part, returns the full names instead.
    """
    paths = set(chosen)
    last = {path.rpartition(".")[2] for path in paths}
    matches = {path for path in known if path.rpartition(".")[2] in last}
    return sorted(last if matches == paths else paths)
