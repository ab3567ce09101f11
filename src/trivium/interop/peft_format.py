"""Save LoRA adapters in PEFT's format: `adapter_config.json`, `adapter_model.safetensors`.

`peft_reader.py` reads these files.

Weights have the names of the Hugging Face family that the model is exported as, so that `peft`
can load the adapter. A model that no family can express keeps its own weight names, and
`auto_mapping` in the configuration names its class.

A matrix that the family fuses (GPT-2's QKV) consists of several matrices of the module: their LoRA
matrices A are stacked, and the fused B is block-diagonal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trivium.adapt.adapter import Adapter, with_untied_heads
from trivium.adapt.lora import LoRA, LoRALinear, adapted_layers, find_trainable_names
from trivium.errors import SpecError
from trivium.files import write_json
from trivium.interop.convert import exported_spec, hf_weight_map, is_expressible, to_hf_config
from trivium.interop.family import Family
from trivium.interop.settings import Settings
from trivium.interop.spec_config import HFConfig
from trivium.interop.tensor_files import write_safetensors
from trivium.interop.weight_map import HFWeight, weight_map
from trivium.models import LanguageModule, Transformer, build
from trivium.models.transformer import TransformerSpec

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
TASK_TYPES = {"classifier": "SEQ_CLS", "tagger": "TOKEN_CLS", "span": "QUESTION_ANS"}
"""Kind of head -> PEFT's `task_type`."""


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
    write_adapter(folder, adapter_to_peft(model, lora, model_type), base)


def save_read_adapter(
    folder: Path, model: LanguageModule, adapter: Adapter, *, model_type: str | None = None
) -> None:
    """Write the adapter that `with_adapter(module, adapter)` has added to a model.

    Raises:
        SpecError: an adapter that PEFT cannot represent; raised before anything is written.
    """
    write_adapter(folder, read_adapter_to_peft(model, adapter, model_type), adapter.base)


def write_adapter(
    folder: Path, converted: tuple[dict[str, Any], dict[str, Tensor]], base: str | None
) -> None:
    """Write the configuration and the tensors of an adapter to a folder."""
    config, tensors = converted
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, {**config, "base_model_name_or_path": base})
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})


def write_adapter_settings(folder: Path, settings: Settings) -> None:
    """Write labels, task, generation options and chat template to the folder of an adapter.

    The tokenizer is that of the base model.
    """
    replace(settings, tokenizer={}).write(folder)


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
    return _to_peft(model, find_trainable_names(model, lora), lora.dropout, model_type)


def read_adapter_to_peft(
    model: LanguageModule, adapter: Adapter, model_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert the adapter that `with_adapter(module, adapter)` has added to a model to PEFT.

    Returns its configuration and its tensors by PEFT name, and raises SpecError, as
    `adapter_to_peft` does.
    """
    return _to_peft(model, adapter.weights, adapter.dropout, model_type)


def _to_peft(
    model: LanguageModule, whole: Collection[str], dropout: float, model_type: str | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert an adapter to PEFT. `whole` has the names of the parameters that are fully saved."""
    spec = exported_spec(model.spec) if isinstance(model, Transformer) else None
    if spec is not None and is_expressible(spec):
        weights, extra = hf_weight_map(spec, model_type), {"task_type": _task_type(spec)}
        hf = to_hf_config(spec, model_type)
        family = hf.family
        weights += _tied_output_matrix(spec, hf) if "tokens.weight" in whole else []
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
        own = {
            "base_model_class": type(model).__name__,
            "parent_library": "trivium",
            "heads": model.spec.to_dict().get("heads", []),
        }
        names = build(model.spec, device="meta").state_dict()
        weights, extra = [HFWeight(name, (name,)) for name in names], {"auto_mapping": own}
    config, tensors = _weights_to_peft(model, whole, weights)
    return {**config, "lora_dropout": dropout, **extra}, tensors


def _tied_output_matrix(spec: TransformerSpec, hf: HFConfig) -> list[HFWeight]:
    """Return the output matrix that is tied to the token embeddings, under its own name.

    PEFT changes each of two tied matrices for itself, so that both are written.
    """
    untied = with_untied_heads(spec)
    if untied == spec:
        return []
    names = build(untied, device="meta").state_dict().keys()
    own = {f"heads.{head.kind}.weight" for head in spec.heads} - {
        *build(spec, device="meta").state_dict()
    }
    try:
        weights = weight_map(hf.family, hf.architecture, untied, names)
    except SpecError:
        raise SpecError(
            f"PEFT trains only one of two tied matrices, and {hf.family.model_type} always ties "
            "token embeddings and output matrix: merge the adapter and export the whole model."
        ) from None
    return [replace(each, local=("tokens.weight",)) for each in weights if own & {*each.local}]


def _task_type(spec: TransformerSpec) -> str | None:
    """Return PEFT's name of a model's task; None if it has none."""
    kinds = [head.kind for head in spec.heads]
    if "lm" in kinds:
        return "SEQ_2_SEQ_LM" if spec.family == "encoder-decoder" else "CAUSAL_LM"
    return next((TASK_TYPES[kind] for kind in kinds if kind in TASK_TYPES), None)


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
    model: LanguageModule, whole: Collection[str], weights: list[HFWeight]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return PEFT's configuration and tensors for the LoRA adapter of a model.

    `weights` lists the names of all weights of the model in the file and in the module, and `whole`
    the names in the module of those that are fully saved.
    """
    layers = {f"{name}.weight": layer for name, layer in adapted_layers(model).items()}
    if not layers:
        raise SpecError("the adapter of this model cannot be saved: it has none.")
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    uses_dora = False
    for weight in weights:
        adapted = [layers[name] for name in weight.local if name in layers]
        if adapted:
            module = weight.hf.removesuffix(".weight")
            a, b, scale = _fuse_lora(model, weight, layers)
            ranks[module], alphas[module] = len(a), scale * len(a)
            tensors[f"{PREFIX}{module}.lora_A.weight"] = a
            tensors[f"{PREFIX}{module}.lora_B.weight"] = b
            magnitudes = [each for layer in adapted if (each := layer.magnitude) is not None]
            if magnitudes:
                uses_dora = True
                tensors[f"{PREFIX}{module}.lora_magnitude_vector"] = weight.fuse(magnitudes)
    saved = _modules_to_save(model, whole, weights)
    for name, tensor in saved.items():
        module, _, last = name.rpartition(".")
        inner = ".base_layer" if module in ranks else ""
        tensors[f"{PREFIX}{module}{inner}.{last}" if module else f"{PREFIX}{name}"] = tensor
    rank = min(ranks.values())
    alpha = next(alphas[module] for module, own in ranks.items() if own == rank)
    kept = {_without_head_parts(name.rpartition(".")[0]) for name in saved}
    biases = {name.removesuffix(".bias") for name in saved if name.endswith(".bias")}
    alone = {name for name in biases if f"{name}.weight" not in saved}
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": _target_modules(
            ranks, [weight.hf.removesuffix(".weight") for weight in weights]
        ),
        "rank_pattern": {module: own for module, own in ranks.items() if own != rank},
        "alpha_pattern": {module: own for module, own in alphas.items() if own != alpha},
        "modules_to_save": sorted(kept - alone) or None,
        "fan_in_fan_out": any(weight.transposed for weight in weights),
        "use_dora": uses_dora,
        "bias": "all" if alone else "none",
        "inference_mode": True,
    }
    return config, tensors


def _fuse_lora(
    model: LanguageModule, weight: HFWeight, layers: Mapping[str, LoRALinear]
) -> tuple[Tensor, Tensor, float]:
    """Return LoRA's A, B and the scale for a matrix that has k adapted parts of rank r.

    A is [k r, I] and B [O, k r] is block-diagonal. If all parts have the same A, as the parts of a
    fused matrix that was read from PEFT's files, the result keeps it: A is [r, I] and B [O, r].
    """
    adapted = [layers[name] for name in weight.local if name in layers]
    first, scale = adapted[0].lora_a.detach(), adapted[0].scale
    factors = [layer.scale / scale for layer in adapted]
    b = [layer.lora_b.detach() * factor for layer, factor in zip(adapted, factors, strict=True)]
    same = all(torch.equal(first, layer.lora_a) for layer in adapted)
    if same and len(adapted) == len(weight.local):
        return first, weight.fuse(b), scale
    a = torch.cat([layer.lora_a.detach() for layer in adapted])
    rest = iter(b)
    shapes = build(model.spec, device="meta").state_dict()  # quantised weights have others
    blocks = [
        next(rest) if name in layers else a.new_zeros(len(shapes[name]), 0) for name in weight.local
    ]
    rows = torch.block_diag(*blocks).split([len(block) for block in blocks])
    return a, weight.fuse(rows), scale


def _modules_to_save(
    model: LanguageModule, whole: Collection[str], weights: list[HFWeight]
) -> dict[str, Tensor]:
    """Return Hugging Face name -> parameter that is fully saved (PEFT's `modules_to_save`)."""
    left = set(whole)
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    written = [weight for weight in weights if left.issuperset(weight.local)]
    left -= {name for weight in written for name in weight.local}
    if left:
        raise SpecError(
            f"{min(left)} is trained beside the adapter, but the family has it only as a part of "
            "another tensor, or not at all: merge the adapter and export the whole model."
        )
    # safetensors refuses two names for one storage, as those of tied matrices.
    return {weight.hf: weight.join(state).clone() for weight in written}


def _without_head_parts(module: str) -> str:
    """Return the name of a module to save. PEFT saves the head of a task as a whole."""
    first = module.partition(".")[0]
    return first if first in ("classifier", "score") else module


def _target_modules(chosen: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return PEFT's `target_modules` for the adapted modules: the last parts of their names.

    If another of the `known` modules has the same last part, returns the full names instead.
    """
    paths = set(chosen)
    last = {path.rpartition(".")[2] for path in paths}
    matches = {path for path in known if path.rpartition(".")[2] in last}
    return sorted(last if matches == paths else paths)
