"""Adapters on disk, as `peft` saves them: `adapter_config.json`, `adapter_model.safetensors`.

Names of weights are those of a Hugging Face family, by its table, so that `peft` loads an adapter
of ours and the other way round. A model without a family has its own names; `auto_mapping` in the
configuration says so, and names the base class.

Where one matrix of the family is several of ours (GPT-2's fused QKV), the file has one A for all of
them. Saving, the As are stacked and B has a block for each; loading, each of ours gets the rows of
A that its rows of B use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Size, Tensor, nn

from trivium.adapt.lora import LoRA, LoRALinear, adapted_layers, add_lora, trained_parameters
from trivium.errors import CheckpointError, DataError, SpecError
from trivium.files import read_json, write_file, write_json
from trivium.models import LanguageModule

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(.+)\.lora_([AB])\.weight")
# Options that change what an adapter computes, in a way that `LoRALinear` does not.
_UNSUPPORTED = (
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
    """One tensor of a Hugging Face family and the local tensors that it holds, rows joined."""

    @property
    def hf(self) -> str:
        """Its name there."""
        ...

    @property
    def local(self) -> tuple[str, ...]:
        """Names in the `state_dict`."""
        ...

    @property
    def transposed(self) -> bool:
        """Whether the family stores it as [in, out]."""
        ...

    def split(self, tensor: Tensor, shapes: Mapping[str, Size]) -> dict[str, Tensor]:
        """hf -> local."""
        ...

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """local -> hf."""
        ...


@dataclass(frozen=True)
class _OwnName:
    """A row of a model without a family."""

    hf: str
    transposed: bool = False

    @property
    def local(self) -> tuple[str, ...]:
        return (self.hf,)

    def split(self, tensor: Tensor, shapes: Mapping[str, Size]) -> dict[str, Tensor]:
        if tensor.shape != shapes[self.hf]:
            raise CheckpointError(
                f"{self.hf} is {list(tensor.shape)}, but {list(shapes[self.hf])} in this model."
            )
        return {self.hf: tensor}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors[self.hf]


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / CONFIG).is_file()


def save_adapter(
    folder: Path,
    model: LanguageModule,
    lora: LoRA,
    *,
    table: Iterable[WeightRow] | None = None,
    base: str | None = None,
) -> Path:
    """Write the adapter of a model, and what was trained in full beside it.

    Args:
        folder: made where there is none.
        model: one that `add_lora(model, lora)` has adapted.
        lora: the same.
        table: the weights of the family that the model is exported as; None: local names.
        base: path or hub name of the base model.

    Raises:
        SpecError: no adapter, or a trained tensor that the family has only as a part of another.
    """
    names = [n for n in model.state_dict() if not n.endswith((".lora_a", ".lora_b"))]
    rows: list[WeightRow] = [_OwnName(n) for n in names] if table is None else list(table)
    config, tensors = _to_peft(model, lora, rows)
    if table is None:
        own = {"base_model_class": type(model).__name__, "parent_library": "trivium"}
        config["auto_mapping"] = own
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, {**config, "base_model_name_or_path": base})
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_file(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    return folder


def load_adapter(
    folder: Path, model: LanguageModule, *, table: Iterable[WeightRow] | None = None
) -> LoRA:
    """Adapt a base model, in place, as the adapter in a folder says; `merge_lora` may follow.

    Args:
        folder: written by `save_adapter` or by `peft`.
        model: the base.
        table: the weights of the model's family, for an adapter with its names.

    Raises:
        CheckpointError: files that are missing or damaged, an adapter of another kind or made for
            another model. The model is unchanged then.
    """
    try:
        config, tensors = read_json(folder / CONFIG), load_file(folder / WEIGHTS)
    except (OSError, ValueError, DataError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the adapter cannot be read: {error}") from None
    own = (config.get("auto_mapping") or {}).get("parent_library") == "trivium"
    if not own and table is None:
        raise CheckpointError(
            f"{folder}: the adapter has the names of a Hugging Face family, which this model has "
            "no table for: load its base from a Hugging Face folder."
        )
    rows: Iterable[WeightRow] = table or ()
    if own:
        rows = [_OwnName(name) for name in model.state_dict()]
    try:
        return _from_peft(config, tensors, model, rows)
    except SpecError as error:
        raise CheckpointError(f"{folder}: does not fit this model: {error}") from None


def _to_peft(
    model: LanguageModule, lora: LoRA, rows: Sequence[WeightRow]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    layers = {f"{name}.weight": layer for name, layer in adapted_layers(model).items()}
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for row in rows:
        if any(name in layers for name in row.local):
            module = row.hf.removesuffix(".weight")
            a, b = _fused(model, row, layers)
            ranks[module] = len(a)
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = a
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = b
    unnamed = layers.keys() - {name for row in rows for name in row.local}
    if unnamed or not layers:
        reason = f"the family has no name for {min(unnamed)}" if unnamed else "it has none"
        raise SpecError(f"the adapter of this model cannot be saved: {reason}.")
    whole = _trained_in_full(model, lora, rows)
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in whole.items()}
    rank = min(ranks.values())
    larger = {module: own for module, own in ranks.items() if own != rank}
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": lora.scale * rank,
        "lora_dropout": lora.dropout,
        "target_modules": _short(ranks, [row.hf.removesuffix(".weight") for row in rows]),
        "rank_pattern": larger,
        "alpha_pattern": {module: lora.scale * own for module, own in larger.items()},
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole}) or None,
        "fan_in_fan_out": any(row.transposed for row in rows),
        "bias": "none",
        "inference_mode": True,
    }
    return config, tensors


def _from_peft(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    model: LanguageModule,
    table: Iterable[WeightRow],
) -> LoRA:
    _check_kind(config)
    rows = {row.hf: row for row in table}
    pairs: dict[str, dict[str, Tensor]] = {}
    new: dict[str, Tensor] = {}
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    for key, tensor in tensors.items():
        matrix = _MATRIX.fullmatch(key)
        row = _row_of(f"{matrix[1]}.weight" if matrix else key, rows)
        if matrix:
            pairs.setdefault(row.hf, {})[matrix[2]] = tensor
        else:
            new |= row.split(tensor, shapes)
    updates: dict[str, tuple[Tensor, Tensor, float]] = {}
    for name, pair in pairs.items():
        updates |= _updates(rows[name], pair, _scale(config, name, pair), shapes)
    if not updates:
        raise CheckpointError(f"{WEIGHTS}: no LoRA matrices inside.")
    rank, scale = max(len(a) for a, _, _ in updates.values()), next(iter(updates.values()))[2]
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    lora = LoRA(
        rank=rank,
        alpha=scale * rank,
        dropout=float(config.get("lora_dropout") or 0.0),
        targets=tuple(_short(updates, linear)),
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


def _fused(
    model: LanguageModule, row: WeightRow, layers: Mapping[str, LoRALinear]
) -> tuple[Tensor, Tensor]:
    """A [k r, I] and B [O, k r] of a matrix that holds k adapted ones of ours."""
    a = torch.cat([layers[name].lora_a.detach() for name in row.local if name in layers])
    sizes = [len(model.get_parameter(name)) for name in row.local]
    b = a.new_zeros(sum(sizes), len(a))
    top = left = 0
    for name, size in zip(row.local, sizes, strict=True):
        if name in layers:
            part = layers[name].lora_b.detach()
            b[top : top + size, left : left + part.shape[1]] = part
            left += part.shape[1]
        top += size
    return a, b


def _trained_in_full(
    model: LanguageModule, lora: LoRA, rows: Sequence[WeightRow]
) -> dict[str, Tensor]:
    """What is trained beside the adapter, under the family's names."""
    left = set(trained_parameters(model, lora))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    whole: dict[str, Tensor] = {}
    for row in rows:
        if left.issuperset(row.local):
            whole[row.hf] = row.join(weights)
    left -= {name for row in rows if row.hf in whole for name in row.local}
    if left:
        raise SpecError(
            f"{min(left)} is trained beside the adapter, but the family has it only as a part of "
            "another tensor, or not at all: merge the adapter and export the whole model."
        )
    return whole


def _check_kind(config: Mapping[str, Any]) -> None:
    wrong = {"peft_type": config.get("peft_type"), "bias": config.get("bias", "none")}
    expected = {"peft_type": "LORA", "bias": "none"}
    problems = [f'"{key}" is {wrong[key]!r}' for key in wrong if wrong[key] != expected[key]]
    problems += [f'"{name}" is {config[name]!r}' for name in _UNSUPPORTED if config.get(name)]
    if problems:
        raise CheckpointError(
            f"{CONFIG}: {problems[0]}, which is not supported; supported: LoRA of matrices alone."
        )


def _row_of(name: str, rows: Mapping[str, WeightRow]) -> WeightRow:
    """The row of a name; a file made for a body alone lacks the prefix of the whole model."""
    name = name.removeprefix(_PREFIX)
    if name in rows:
        return rows[name]
    matches = [row for full, row in rows.items() if full.endswith(f".{name}")]
    if len(matches) != 1:
        raise CheckpointError(f"{WEIGHTS}: this model has no {name}: it is not the adapter's base.")
    return matches[0]


def _scale(config: Mapping[str, Any], name: str, pair: Mapping[str, Tensor]) -> float:
    """What a product is multiplied by; `peft` may have a number for each module."""
    module, alpha = name.removesuffix(".weight"), config.get("lora_alpha", 8)
    for pattern, own in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = own
            break
    rank = len(pair["A"]) if "A" in pair else 1
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _updates(
    row: WeightRow,
    pair: Mapping[str, Tensor],
    scale: float,
    shapes: Mapping[str, Size],
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """A, B and the scale of each local layer that a matrix of the family holds.

    Of several, each has the directions of A that its rows of B use; those that use none are not
    adapted.
    """
    sizes = [shapes[name][0] for name in row.local]
    expected = [sum(sizes), shapes[row.local[0]][1]]
    fits = pair.keys() == {"A", "B"} and [len(pair["B"]), pair["A"].shape[1]] == expected
    if not fits or pair["A"].shape[0] != pair["B"].shape[1]:
        sizes_there = {name: list(tensor.shape) for name, tensor in pair.items()}
        raise CheckpointError(
            f"{WEIGHTS}: the adapter of {row.hf} is {sizes_there}, but the matrix of this model "
            f"is {expected} (outputs, inputs): it is not the adapter's base."
        )
    a, parts = pair["A"], pair["B"].split(sizes)
    names = [name.removesuffix(".weight") for name in row.local]
    if len(names) == 1 or not pair["B"].any():
        return {name: (a, part, scale) for name, part in zip(names, parts, strict=True)}
    used = [part.any(0) for part in parts]
    return {
        name: (a[use], part[:, use], scale)
        for name, part, use in zip(names, parts, used, strict=True)
        if use.any()
    }


def _short(chosen: Iterable[str], known: Iterable[str]) -> list[str]:
    """The last parts of paths, where only the chosen ones end so; else the paths."""
    paths = set(chosen)
    last = {path.rpartition(".")[2] for path in paths}
    matches = {path for path in known if path.rpartition(".")[2] in last}
    return sorted(last if matches == paths else paths)
