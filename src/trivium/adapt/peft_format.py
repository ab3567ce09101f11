"""Adapters as `peft` keeps them: `adapter_config.json` and `adapter_model.safetensors`.

The names of theirs come from a family's table of weights, which the caller has. Where one matrix of
theirs is several of ours (GPT-2), theirs has one A for all of them: going out, the As stand one
above the other and B has a block for each; coming in, each of ours gets the A and its rows of B.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Size, Tensor, nn

from trivium.adapt.lora import LoRA, LoRALinear, add_lora, trained_parameters
from trivium.adapt.saved import read_tensors, write_pair
from trivium.errors import CheckpointError, SpecError
from trivium.models import LanguageModule

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_THIN = re.compile(r"(.+)\.lora_([AB])\.weight")
# Options of theirs that change what an adapter computes, in a way that LoRA has not.
_OTHER_KINDS = (
    "alora_invocation_tokens",
    "arrow_config",
    "layer_replication",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)


class WeightRow(Protocol):
    """One tensor of theirs and the names of ours that it holds, their rows joined."""

    @property
    def theirs(self) -> str:
        """Its name in a file of theirs."""
        ...

    @property
    def ours(self) -> tuple[str, ...]:
        """Names in our `state_dict`."""
        ...

    @property
    def transposed(self) -> bool:
        """Whether theirs is [in, out]."""
        ...

    def split(self, tensor: Tensor, shapes: Mapping[str, Size]) -> dict[str, Tensor]:
        """Theirs -> ours."""
        ...

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Ours -> theirs."""
        ...


def is_peft(folder: Path) -> bool:
    """Whether a folder holds an adapter of theirs."""
    return (folder / CONFIG).is_file()


def save_peft(
    folder: Path,
    model: LanguageModule,
    lora: LoRA,
    table: Iterable[WeightRow],
    *,
    base: str | None = None,
) -> Path:
    """Write the adapter of a model for `peft.PeftModel.from_pretrained`.

    Args:
        folder: made where there is none.
        model: one that `add_lora(model, lora)` has adapted.
        lora: the same description.
        table: the weights of the family that the model is exported as.
        base: where the base is, for theirs to find it.

    Raises:
        CheckpointError: the folder cannot be written.
        SpecError: a trained tensor that theirs has only as a part of another.
    """
    config, tensors = to_peft(model, lora, table)
    write_pair(folder, CONFIG, {**config, "base_model_name_or_path": base}, WEIGHTS, tensors)
    return folder


def load_peft(folder: Path, model: LanguageModule, table: Iterable[WeightRow]) -> LoRA:
    """Adapt a base model, in place, by an adapter of theirs.

    Raises:
        CheckpointError: files that are missing or damaged, an adapter of another kind or made for
            another model. The model is as it was then.
    """
    file = folder / CONFIG
    try:
        config = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}.") from None
    tensors = read_tensors(folder / WEIGHTS)
    try:
        return from_peft(config, tensors, model, table)
    except SpecError as error:
        raise CheckpointError(f"{folder}: does not fit this model: {error}") from None


def to_peft(
    model: LanguageModule, lora: LoRA, table: Iterable[WeightRow]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options and tensors of theirs; see `save_peft`."""
    rows = list(table)
    layers = {f"{n}.weight": m for n, m in model.named_modules() if isinstance(m, LoRALinear)}
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for row in rows:
        if any(name in layers for name in row.ours):
            module = row.theirs.removesuffix(".weight")
            a, b = _fused(model, row, layers)
            ranks[module] = len(a)
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = a
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = b
    outside = layers.keys() - {name for row in rows for name in row.ours}
    if outside or not layers:
        missing = f"peft has no name for {min(outside)}" if outside else "it has no LoRA adapter"
        raise SpecError(f"the adapter of this model cannot be saved for peft: {missing}.")
    whole = _whole(model, lora, rows)
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in whole.items()}
    usual = min(ranks.values())
    more = {module: rank for module, rank in ranks.items() if rank != usual}
    config = {
        "peft_type": "LORA",
        "r": usual,
        "lora_alpha": lora.scale * usual,
        "lora_dropout": lora.dropout,
        "target_modules": _short(ranks, [row.theirs.removesuffix(".weight") for row in rows]),
        "rank_pattern": more,
        "alpha_pattern": {module: lora.scale * rank for module, rank in more.items()},
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole}) or None,
        "fan_in_fan_out": any(row.transposed for row in rows),
        "bias": "none",
        "inference_mode": True,
    }
    return config, tensors


def from_peft(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    model: LanguageModule,
    table: Iterable[WeightRow],
) -> LoRA:
    """Adapt a model by options and tensors of theirs; see `load_peft`."""
    _check_kind(config)
    rows = {row.theirs: row for row in table}
    thin: dict[str, dict[str, Tensor]] = {}
    ours: dict[str, Tensor] = {}
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    for key, tensor in tensors.items():
        found = _THIN.fullmatch(key)
        row = _row_of(f"{found[1]}.weight" if found else key, rows)
        if found:
            thin.setdefault(row.theirs, {})[found[2]] = tensor
        else:
            ours |= row.split(tensor, shapes)
    pieces: dict[str, tuple[Tensor, Tensor, float]] = {}
    for theirs, pair in thin.items():
        pieces |= _pieces(rows[theirs], pair, _scale(config, theirs, pair), shapes)
    if not pieces:
        raise CheckpointError(f"{WEIGHTS}: no matrices of LoRA inside.")
    rank, scale = max(len(a) for a, _, _ in pieces.values()), next(iter(pieces.values()))[2]
    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    lora = LoRA(
        rank=rank,
        alpha=scale * rank,
        dropout=float(config.get("lora_dropout") or 0.0),
        targets=tuple(_short(pieces, linear)),
        trained=tuple(ours),
    )
    add_lora(model, lora)
    for name, (a, b, own) in pieces.items():
        missing = rank - len(a)
        ours[f"{name}.lora_a"] = nn.functional.pad(a, (0, 0, 0, missing))
        b = b if own == scale else b * (own / scale)
        ours[f"{name}.lora_b"] = nn.functional.pad(b, (0, missing))
    with torch.no_grad():
        for name, tensor in ours.items():
            model.get_parameter(name).copy_(tensor)
    return lora


def _fused(
    model: LanguageModule, row: WeightRow, layers: Mapping[str, LoRALinear]
) -> tuple[Tensor, Tensor]:
    """A [k r, I] and B [O, k r] of a matrix of theirs that holds k adapted ones of ours."""
    chosen = [layers[name] for name in row.ours if name in layers]
    a = torch.cat([layer.lora_a.detach() for layer in chosen])
    sizes = [len(model.get_parameter(name)) for name in row.ours]
    b = a.new_zeros(sum(sizes), len(a))
    top, left = 0, 0
    for name, size in zip(row.ours, sizes, strict=True):
        if name in layers:
            thin = layers[name].lora_b.detach()
            b[top : top + size, left : left + thin.shape[1]] = thin
            left += thin.shape[1]
        top += size
    return a, b


def _whole(model: LanguageModule, lora: LoRA, rows: list[WeightRow]) -> dict[str, Tensor]:
    """What is trained in full, under their names."""
    left = set(trained_parameters(model, lora))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    whole: dict[str, Tensor] = {}
    for row in rows:
        if left.issuperset(row.ours):
            whole[row.theirs] = row.join(weights).contiguous()
    left -= {name for row in rows if row.theirs in whole for name in row.ours}
    if left:
        raise SpecError(
            f"{min(left)} is trained beside the adapter, but peft has it only as a part of another "
            "tensor, or not at all: merge the adapter and export the whole model."
        )
    return whole


def _check_kind(config: Mapping[str, Any]) -> None:
    kind, bias = config.get("peft_type"), config.get("bias", "none")
    other = next((name for name in _OTHER_KINDS if config.get(name)), None)
    problem = f'"peft_type" is {kind!r}' if kind != "LORA" else None
    problem = problem or (f'"bias" is {bias!r}' if bias != "none" else None)
    problem = problem or (f'"{other}" is {config[other]!r}' if other else None)
    if problem:
        raise CheckpointError(
            f"{CONFIG}: {problem}, which is not supported; supported: LoRA of matrices alone."
        )


def _row_of(name: str, rows: Mapping[str, WeightRow]) -> WeightRow:
    """The row of a name; a file made for a body alone lacks what stands before it."""
    name = name.removeprefix(_PREFIX)
    if name in rows:
        return rows[name]
    found = [row for theirs, row in rows.items() if theirs.endswith(f".{name}")]
    if len(found) != 1:
        raise CheckpointError(
            f"{WEIGHTS}: {name} has no place in this model: it is not the adapter's base."
        )
    return found[0]


def _scale(config: Mapping[str, Any], theirs: str, pair: Mapping[str, Tensor]) -> float:
    """What a product is multiplied with; theirs may have a number for each module."""
    module, alpha = theirs.removesuffix(".weight"), config.get("lora_alpha", 8)
    for pattern, own in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = own
            break
    rank = len(pair["A"]) if "A" in pair else 1
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _pieces(
    row: WeightRow, pair: Mapping[str, Tensor], scale: float, shapes: Mapping[str, Size]
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """A, B and the scale of each layer of ours that a matrix of theirs holds.

    Of several, each has the directions of A that its rows of B use; those that use none are not
    adapted.
    """
    sizes = [shapes[name][0] for name in row.ours]
    expected = [sum(sizes), shapes[row.ours[0]][1]]
    found = [len(pair["B"]), pair["A"].shape[1]] if pair.keys() == {"A", "B"} else None
    if found != expected or pair["A"].shape[0] != pair["B"].shape[1]:
        has = {name: list(tensor.shape) for name, tensor in pair.items()}
        raise CheckpointError(
            f"{WEIGHTS}: {row.theirs} is adapted by {has}, but in this model it is {expected} "
            "(outputs, inputs): it is not the adapter's base."
        )
    a, parts = pair["A"], pair["B"].split(sizes)
    names = [name.removesuffix(".weight") for name in row.ours]
    if len(names) == 1 or not pair["B"].any():
        return {name: (a, part, scale) for name, part in zip(names, parts, strict=True)}
    used = [part.any(0) for part in parts]
    return {
        name: (a[use], part[:, use], scale)
        for name, part, use in zip(names, parts, used, strict=True)
        if use.any()
    }


def _short(chosen: Iterable[str], known: Iterable[str]) -> list[str]:
    """The last parts of paths, where they mean the chosen ones alone; else the paths."""
    paths = set(chosen)
    last = {path.rpartition(".")[2] for path in paths}
    meant = {path for path in known if path.rpartition(".")[2] in last}
    return sorted(last if meant == paths else paths)
