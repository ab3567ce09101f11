"""LoRA adapters on disk, as `peft` saves them: `adapter_config.json`, `adapter_model.safetensors`.

Weights have the names of the Hugging Face family that the model is exported as, so that `peft` and
this project read each other's adapters. A model without such a family keeps its local names, and
`auto_mapping` in the configuration names its class.

A fused matrix of the family (GPT-2's QKV) is several local ones. Saving stacks their As and makes B
block-diagonal; loading gives each local matrix the rows of A that its rows of B use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Size, Tensor, nn

from trivium.adapt.lora import LoRA, LoRALinear, adapted_layers, add_lora, trained_parameters
from trivium.errors import CheckpointError, SpecError, shorten
from trivium.files import write_json
from trivium.interop.convert import check_finite, hf_weights, is_expressible
from trivium.interop.hf_config import check_types, read_object
from trivium.interop.tensor_files import read_safetensors, write_safetensors
from trivium.interop.weight_map import HFWeight
from trivium.models import LanguageModule, Transformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(.+)\.lora_([AB])\.weight")
# Options that change what an adapter computes, in a way that `LoRALinear` does not.
_UNSUPPORTED = """
alora_invocation_tokens arrow_config layer_replication lora_bias target_parameters
trainable_token_indices use_bdlora use_dora use_qalora
"""


class _Types(BaseModel):
    """What the options are that are used here."""

    model_config = ConfigDict(extra="ignore", strict=True)

    lora_alpha: float | None = None
    lora_dropout: float | None = None
    alpha_pattern: dict[re.Pattern[str], float] | None = None
    auto_mapping: dict[str, Any] | None = None


def save_adapter(
    folder: Path, model: LanguageModule, lora: LoRA, *, base: str | None = None
) -> None:
    """Write the adapter of a model, and what was trained in full beside it.

    Args:
        folder: created if missing.
        model: one that `add_lora(model, lora)` has adapted.
        lora: the same.
        base: path or hub name of the base model.

    Raises:
        SpecError: no adapter, or a trained tensor that the family has only as a part of another.
    """
    if isinstance(model, Transformer) and is_expressible(model.spec):
        weights, extra = hf_weights(model), {}
    else:
        own = {"base_model_class": type(model).__name__, "parent_library": "trivium"}
        weights, extra = _own_names(model), {"auto_mapping": own}
    config, tensors = _to_peft(model, lora, weights)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, {**config, **extra, "base_model_name_or_path": base})
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})


def load_adapter(folder: Path, model: LanguageModule) -> LoRA:
    """Adapt a base model, in place, as the adapter in a folder says; `merge_lora` may follow.

    Args:
        folder: written by `save_adapter` or by `peft`.
        model: the base.

    Raises:
        CheckpointError: files that are missing or damaged, an adapter of another kind or made for
            another model. The model is unchanged then.
    """
    config = read_object(folder / CONFIG)
    check_types(_Types, config, folder / CONFIG)
    tensors = read_safetensors(folder / WEIGHTS)
    for name, tensor in tensors.items():
        check_finite(f"{folder}: {name}", tensor)
    own = (config.get("auto_mapping") or {}).get("parent_library") == "trivium"
    try:
        if own or not isinstance(model, Transformer):
            return _from_peft(config, tensors, model, _own_names(model))
        return _from_peft(config, tensors, model, hf_weights(model))
    except SpecError as error:
        raise CheckpointError(f"{folder}: does not fit this model: {error}") from None


def _own_names(model: LanguageModule) -> list[HFWeight]:
    names = [name for name in model.state_dict() if not name.endswith((".lora_a", ".lora_b"))]
    return [HFWeight(name, (name,)) for name in names]


def _to_peft(
    model: LanguageModule, lora: LoRA, weights: list[HFWeight]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    layers = {f"{name}.weight": layer for name, layer in adapted_layers(model).items()}
    if not layers:
        raise SpecError("the adapter of this model cannot be saved: it has none.")
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for weight in weights:
        if any(name in layers for name in weight.local):
            module = weight.hf.removesuffix(".weight")
            a, b = _fused(model, weight, layers)
            ranks[module] = len(a)
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = a
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = b
    whole = _trained_in_full(model, lora, weights)
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


def _fused(
    model: LanguageModule, weight: HFWeight, layers: Mapping[str, LoRALinear]
) -> tuple[Tensor, Tensor]:
    """A [k r, I] and B [O, k r] of a matrix of the family that holds k adapted local ones."""
    a = torch.cat([layers[name].lora_a.detach() for name in weight.local if name in layers])
    blocks = [
        layers[name].lora_b.detach()
        if name in layers
        else a.new_zeros(len(model.get_parameter(name)), 0)
        for name in weight.local
    ]
    return a, torch.block_diag(*blocks)


def _trained_in_full(
    model: LanguageModule, lora: LoRA, weights: list[HFWeight]
) -> dict[str, Tensor]:
    """What is trained beside the adapter, under the family's names."""
    left = set(trained_parameters(model, lora))
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    written = [weight for weight in weights if left.issuperset(weight.local)]
    left -= {name for weight in written for name in weight.local}
    if left:
        raise SpecError(
            f"{min(left)} is trained beside the adapter, but the family has it only as a part of "
            "another tensor, or not at all: merge the adapter and export the whole model."
        )
    return {weight.hf: weight.join(state) for weight in written}


def _from_peft(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    model: LanguageModule,
    weights: Iterable[HFWeight],
) -> LoRA:
    _check_kind(config)
    by_name = {weight.hf: weight for weight in weights}
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    pairs: dict[str, dict[str, Tensor]] = {}
    new: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        matrix = _MATRIX.fullmatch(key)
        weight = _find(f"{matrix[1]}.weight" if matrix else key, by_name)
        if matrix:
            pairs.setdefault(weight.hf, {})[matrix[2]] = tensor
        else:
            new |= weight.split(tensor, shapes)
    updates: dict[str, tuple[Tensor, Tensor, float]] = {}
    for name, pair in pairs.items():
        updates |= _updates(config, by_name[name], pair, shapes)
    if not updates:
        raise CheckpointError(f"{WEIGHTS}: no LoRA matrices inside.")
    rank, scale = max(len(a) for a, _, _ in updates.values()), next(iter(updates.values()))[2]
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    lora = LoRA(
        rank=rank,
        alpha=scale * rank,
        dropout=float(config.get("lora_dropout") or 0.0),
        targets=tuple(_target_modules(updates, linear)),
        trained=tuple(new),
    )
    add_lora(model, lora)
    for name, (a, b, own) in updates.items():  # smaller ranks are padded with zeros
        new[f"{name}.lora_a"] = nn.functional.pad(a, (0, 0, 0, rank - len(a)))
        new[f"{name}.lora_b"] = nn.functional.pad(b * (own / scale), (0, rank - len(a)))
    with torch.no_grad():
        for name, tensor in new.items():
            model.get_parameter(name).copy_(tensor)
    return lora


def _check_kind(config: Mapping[str, Any]) -> None:
    supported = {"peft_type": "LORA", "bias": "none", **dict.fromkeys(_UNSUPPORTED.split())}
    for name, value in supported.items():
        actual = config.get(name, "none" if name == "bias" else None) or None
        if actual != value:
            raise CheckpointError(
                f'{CONFIG}: "{name}" is {shorten(repr(actual))}, which is not supported; '
                "supported: LoRA of matrices alone."
            )


def _find(name: str, weights: Mapping[str, HFWeight]) -> HFWeight:
    """The weight of a name; a file made for a body alone lacks the prefix of the whole model."""
    name = name.removeprefix(_PREFIX)
    if name in weights:
        return weights[name]
    matches = [weight for full, weight in weights.items() if full.endswith(f".{name}")]
    if len(matches) != 1:
        raise CheckpointError(f"{WEIGHTS}: this model has no {name}: it is not the adapter's base.")
    return matches[0]


def _updates(
    config: Mapping[str, Any],
    weight: HFWeight,
    pair: Mapping[str, Tensor],
    shapes: Mapping[str, Size],
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """A, B and the scale of each local layer that a matrix of the family holds.

    Of several, each has the directions of A that its rows of B use; those that use none are not
    adapted.
    """
    sizes = [shapes[name][0] for name in weight.local]
    expected = [sum(sizes), shapes[weight.local[0]][1]]
    fits = pair.keys() == {"A", "B"} and all(one.ndim == 2 for one in pair.values())
    fits = fits and [len(pair["B"]), pair["A"].shape[1]] == expected
    if not fits or pair["A"].shape[0] != pair["B"].shape[1]:
        actual = {name: list(tensor.shape) for name, tensor in pair.items()}
        raise CheckpointError(
            f"{WEIGHTS}: the adapter of {weight.hf} is {actual}, but the matrix of this model is "
            f"{expected} (outputs, inputs): it is not the adapter's base."
        )
    a, parts = pair["A"], pair["B"].split(sizes)
    scale = _scale(config, weight.hf.removesuffix(".weight"), len(a))
    names = [name.removesuffix(".weight") for name in weight.local]
    if len(names) == 1 or not pair["B"].any():
        return {name: (a, part, scale) for name, part in zip(names, parts, strict=True)}
    used = [part.any(0) for part in parts]
    return {
        name: (a[use], part[:, use], scale)
        for name, part, use in zip(names, parts, used, strict=True)
        if use.any()
    }


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """What B A is multiplied by; `peft` may have an alpha for each module."""
    patterns = (config.get("alpha_pattern") or {}).items()
    matches = (alpha for pattern, alpha in patterns if re.match(rf"(.*\.)?({pattern})$", module))
    alphas = (one for one in (*matches, config.get("lora_alpha")) if one is not None)
    alpha = next(alphas, 8)
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _target_modules(chosen: Iterable[str], known: Iterable[str]) -> list[str]:
    """The last parts of paths, where only the chosen ones end so; else the paths."""
    paths = set(chosen)
    last = {path.rpartition(".")[2] for path in paths}
    matches = {path for path in known if path.rpartition(".")[2] in last}
    return sorted(last if matches == paths else paths)
