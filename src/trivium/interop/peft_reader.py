"""Read LoRA adapters in PEFT's format: `adapter_config.json`, `adapter_model.safetensors`.

The names in the files are those of the Hugging Face class that the adapter was trained on. The
tensors decide which matrices have an update; the configuration has the factors of the updates. An
update of a fused matrix (QKV of GPT-2) is divided into updates of its parts: they share A, and each
has its own rows of B, which gives exactly the same matrix.

An update of a matrix that is not a linear layer (token embeddings, output matrix) is added to a
copy of this matrix.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Size, Tensor

from trivium.adapt.adapter import (
    LINEAR,
    Adapter,
    LowRankUpdate,
    untied_original,
    with_spec,
    with_untied_heads,
)
from trivium.errors import CheckpointError, SpecError, shorten
from trivium.interop.convert import exported_spec, to_hf_config
from trivium.interop.family import Family
from trivium.interop.hf_config import read_json_object
from trivium.interop.peft_format import CONFIG, PREFIX, WEIGHTS
from trivium.interop.spec_config import read_spec
from trivium.interop.tensor_files import PICKLED, SAFETENSORS, read_safetensors
from trivium.interop.weight_map import HFWeight, missing_prefix, tied_original, weight_map
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.models.transformer import TransformerSpec

_TASK_CLASSES = {
    "SEQ_CLS": ("classifier", "ForSequenceClassification"),
    "TOKEN_CLS": ("tagger", "ForTokenClassification"),
    "QUESTION_ANS": ("span", "ForQuestionAnswering"),
}
"""PEFT's `task_type` -> kind of head, end of the name of the Hugging Face class."""

_NO_EFFECT = {
    # Whatever they say, the names and shapes of the tensors are what they led to.
    *("exclude_modules", "layers_to_transform", "layers_pattern"),
    *("bias", "modules_to_save", "fan_in_fan_out"),
    # They were used by the training alone.
    *("inference_mode", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("velora_config", "qalora_group_size", "megatron_core", "runtime_config", "peft_version"),
}
"""The options of `adapter_config.json` that do not change what the adapter computes."""
_INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal", "kaiming")
"""The values of `init_lora_weights` that leave the weights of the base as they are."""

_A, _B, _MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
_EMBEDDING_A, _EMBEDDING_B = "lora_embedding_A", "lora_embedding_B"
_TOKENS = "token_adapter.trainable_tokens_delta"
_PARTS = (_A, _B, _MAGNITUDE, _EMBEDDING_A, _EMBEDDING_B, _TOKENS)
_Number = Annotated[float, Field(strict=False, allow_inf_nan=False, ge=0.0)]

_WRAPPERS = ("base_layer", "modules_to_save")
"""The names of a weight of the base inside the layers of peft."""
_TIED_NAMES = ("embed_tokens", "lm_head")
"""The modules for which peft implements `ensure_weight_tying`."""


def is_adapter_folder(folder: Path) -> bool:
    """Return whether a folder has the files of a PEFT adapter, and no whole model."""
    whole = ("spec.json", SAFETENSORS, f"{SAFETENSORS}.index.json", PICKLED)
    return (folder / CONFIG).is_file() and not any((folder / name).is_file() for name in whole)


class PeftOptions(BaseModel):
    """The options of `adapter_config.json` that are read; others are in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True)

    peft_type: str | None = None
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    auto_mapping: dict[str, Any] | None = None
    r: int
    lora_alpha: _Number
    lora_dropout: _Number = 0.0
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, _Number] | None = None
    target_modules: list[str] | str | None = None
    target_parameters: list[str] | None = None
    init_lora_weights: bool | str | None = True
    trainable_token_indices: list[int] | dict[str, list[int]] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    ensure_weight_tying: bool = False

    def scale(self, path: str, rank: int) -> float:
        """Return the factor of an update: alpha / r, or alpha / sqrt(r) with `use_rslora`.

        Source: Kalajdzievski 2023, equation 7, for rank-stabilized LoRA.
        """
        expected = _match_pattern(self.rank_pattern, path, self.r)
        if rank != expected or not rank:
            raise CheckpointError(f"{path} has rank {rank}, but {CONFIG} says {expected}.")
        alpha = _match_pattern(self.alpha_pattern, path, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_adapter_config(folder: Path) -> PeftOptions:
    """Return the options in `adapter_config.json`.

    Raises:
        CheckpointError: a kind of adapter or an option that is not supported.
    """
    file = folder / CONFIG
    try:
        options = read_json_object(file)
        if (kind := options.get("peft_type")) != "LORA":
            raise CheckpointError(
                f'{file}: "peft_type" is {shorten(repr(kind), 100)}, but only "LORA" is supported.'
            )
        config = PeftOptions.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        name, value = first["loc"][0] if first["loc"] else "", shorten(repr(first["input"]), 100)
        raise CheckpointError(f'{file}: "{name}": {first["msg"]}, not {value}.') from None
    for name, value in (config.model_extra or {}).items():
        if name not in _NO_EFFECT and value not in (None, False, {}, []):
            raise CheckpointError(
                f'{file}: "{name}" = {shorten(repr(value), 100)} changes what the adapter computes '
                "and is not supported. Merge the adapter with peft (`merge_and_unload`) and load "
                "the merged model."
            )
    if config.init_lora_weights not in _INITIALIZATIONS:
        raise CheckpointError(
            f'{file}: "init_lora_weights" = {config.init_lora_weights!r} changes the weights of '
            "the base, which is not supported. Convert the adapter with peft: save_pretrained(..., "
            "path_initial_model_for_weight_conversion=...)."
        )
    return config


def read_adapter(
    folder: Path,
    module: LanguageModule,
    weights: Mapping[str, Tensor] | None = None,
    *,
    model_type: str | None = None,
    name: str | None = None,
) -> Adapter:
    """Read an adapter for a model. Returns it with the names of the model's own weights.

    Args:
        folder: a folder with `adapter_config.json` and `adapter_model.safetensors`.
        module: the base model.
        weights: the weights of the base by name; None takes those of `module`, which may otherwise
            be on the meta device.
        model_type: the Hugging Face family that the base was imported as, if it was imported.
        name: the name of the adapter; None: the name of the folder.

    Raises:
        CheckpointError: the files are missing, damaged or not supported, or do not fit the model.
    """
    config = read_adapter_config(folder)
    if weights is None:
        weights = {name: each.detach() for name, each in module.named_parameters()}
    try:
        names = _Names.find(module.spec, model_type, config, tensors := _read_tensors(folder))
        reader = _Reader(config, names, _Tensors.group(tensors), module, weights)
        return reader.read(name or folder.resolve().name)
    except (CheckpointError, SpecError) as error:
        raise CheckpointError(f"{folder}: {str(error).removeprefix(f'{folder}: ')}") from None


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of an adapter by their names inside the base model."""
    file = folder / WEIGHTS
    if not file.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        advice = "only adapter_model.bin, which peft can save anew" if pickled else "no weights"
        raise CheckpointError(f"there is no {WEIGHTS}: {advice}.")
    tensors = read_safetensors(file)
    for name, tensor in tensors.items():
        if not name.startswith(PREFIX):
            raise CheckpointError(f"{shorten(name)} does not begin with {PREFIX}.")
        if not tensor.isfinite().all():
            raise CheckpointError(f"{name} holds numbers that are not finite.")
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class _Tensors:
    """The tensors of an adapter.

    Args:
        parts: name of a module -> the parts of its update by their names, such as "lora_A.weight".
        whole: name of a weight -> its new value.
    """

    parts: Mapping[str, Mapping[str, Tensor]]
    whole: Mapping[str, Tensor]

    @property
    def names(self) -> list[str]:
        """The names of all modules and weights that the adapter changes."""
        return [*self.parts, *self.whole]

    @classmethod
    def group(cls, tensors: Mapping[str, Tensor]) -> _Tensors:
        """Group tensors by the module that they belong to."""
        parts, whole = defaultdict[str, dict[str, Tensor]](dict), dict[str, Tensor]()
        for name, tensor in tensors.items():
            part = next((part for part in _PARTS if name.endswith(f".{part}")), None)
            if part is not None:
                parts[name.removesuffix(f".{part}")][part] = tensor
            elif ".original_module." not in name:
                for inner in _WRAPPERS:
                    name = name.replace(f".{inner}.", ".")
                whole[name] = tensor
        return cls(parts, whole)


@dataclass(frozen=True)
class _Names:
    """The names of a model's weights in the files of its Hugging Face class.

    Args:
        spec: the spec of the model.
        family: the family of the class; None if the files have the names of the `state_dict`.
        architecture: the class.
        weights: Hugging Face name -> the weight.
        shapes: name in the `state_dict` -> shape.
        base: the prefix that the names in the adapter's files lack, or "".
    """

    spec: Spec
    family: Family | None
    architecture: str
    weights: Mapping[str, HFWeight]
    shapes: Mapping[str, Size]
    base: str = ""

    @classmethod
    def find(
        cls, spec: Spec, model_type: str | None, config: PeftOptions, tensors: Mapping[str, Tensor]
    ) -> _Names:
        """Return the names for the class that an adapter was trained on.

        Raises:
            SpecError: no Hugging Face class fits the model.
            CheckpointError: the adapter has a task head that the model does not have and the family
                neither.
        """
        mapping = config.auto_mapping or {}
        if mapping.get("parent_library") == "trivium":
            if "heads" in mapping:
                spec = Spec.from_dict({**spec.to_dict(), "heads": mapping["heads"]})
            shapes = _shapes(spec)
            return cls(spec, None, "", {name: HFWeight(name, (name,)) for name in shapes}, shapes)
        if not isinstance(spec, TransformerSpec):
            raise SpecError("an adapter of peft is for Transformers, and this model is not one.")
        kind, suffix = _TASK_CLASSES.get(config.task_type or "", ("", ""))
        if kind and kind not in {head.kind for head in spec.heads}:
            spec = _with_task_head(spec, kind, suffix, model_type, tensors)
        hf = to_hf_config(exported_spec(spec), model_type)
        return cls._of_class(spec, hf.family, hf.architecture, tensors)

    @classmethod
    def _of_class(
        cls, spec: TransformerSpec, family: Family, architecture: str, changed: Collection[str]
    ) -> _Names:
        """Return the names for a class of a family. `changed` has names in the adapter's files."""
        exported = exported_spec(spec)
        own = weight_map(family, architecture, exported, _shapes(exported), reading=True)
        base = missing_prefix(family, architecture, changed)
        weights = {weight.hf: weight for weight in own}
        return cls(spec, family, architecture, weights, _shapes(spec), base)

    def untied(self, changed: Collection[str]) -> _Names:
        """Return the names of the same model with an output matrix of its own."""
        assert isinstance(self.spec, TransformerSpec)
        spec = with_untied_heads(self.spec)
        if self.family is None:
            shapes = _shapes(spec)
            weights = {name: HFWeight(name, (name,)) for name in shapes}
            return _Names(spec, None, "", weights, shapes)
        try:
            return self._of_class(spec, self.family, self.architecture, changed)
        except SpecError:
            raise CheckpointError(
                f"{self.family.model_type} always ties token embeddings and output matrix, and the "
                "adapter changes only one of them."
            ) from None

    def get(self, name: str) -> HFWeight | None:
        """Return the weight with a name in the adapter's files, or None if there is none."""
        hf = self.base + name
        if hf not in self.weights and self.family is not None:
            hf = tied_original(self.family, hf, self.weights) or hf
        return self.weights.get(hf)


def _shapes(spec: Spec) -> dict[str, Size]:
    """Return the names and shapes of the weights of a model with a spec."""
    return {name: each.shape for name, each in build(spec, device="meta").state_dict().items()}


def _with_task_head(
    spec: TransformerSpec,
    kind: str,
    suffix: str,
    model_type: str | None,
    tensors: Mapping[str, Tensor],
) -> TransformerSpec:
    """Return the spec with the head of the Hugging Face class for a task instead of its heads.

    The number of labels is that of the adapter's head.
    """
    hf = to_hf_config(spec.replace(heads=()), model_type)
    classes = [name for name in hf.family.architectures if name.endswith(suffix)]
    if not classes:
        raise CheckpointError(f"{hf.family.model_type} has no class with a {kind} head.")
    last = f"heads.{kind}.classifier"
    outputs = [
        n for n, local in hf.family.head_weight_names(classes[0], kind).items() if local == last
    ]
    labels = next((tensors[f"{n}.weight"] for n in outputs if f"{n}.weight" in tensors), None)
    if labels is None:
        raise CheckpointError(
            f"the adapter was trained with a {kind} head, which neither it nor the base contains: "
            f"{outputs[0]}.weight is missing."
        )
    options = {**hf.options, "architectures": classes[:1], "num_labels": len(labels)}
    base = missing_prefix(hf.family, classes[0], tensors)
    return read_spec(hf.family, classes[0], options, {base + name for name in tensors})


@dataclass
class _Reader:
    """Converts the tensors of an adapter.

    Args:
        config: the content of `adapter_config.json`.
        names: the names of the weights.
        tensors: the tensors of the adapter.
        module: the base model.
        weights: the weights of the base by name.
    """

    config: PeftOptions
    names: _Names
    tensors: _Tensors
    module: LanguageModule
    weights: Mapping[str, Tensor]

    def read(self, name: str) -> Adapter:
        """Return the adapter, with the names of the model's own weights."""
        self._drop_copies_of_base()
        if self._unties():
            self.names = self.names.untied(self.tensors.names)
        self._resize_vocabulary()
        model = with_spec(self.module, self.names.spec)
        updates, weights = dict[str, LowRankUpdate](), self._read_whole()
        weights |= self._copy_to_new_heads(weights)
        for path, parts in self.tensors.parts.items():
            if _TOKENS in parts:
                weights |= self._replace_rows(path, parts[_TOKENS])
                continue
            for local, update in self._read_update(path, parts).items():
                layer = local.removesuffix(".weight")
                if isinstance(model.get_submodule(layer), LINEAR) and local not in weights:
                    updates[layer] = update
                else:
                    whole = weights.get(local)
                    weights[local] = update.apply_to(
                        self._read_base_weight(local) if whole is None else whole
                    )
        if not updates and not weights:
            raise CheckpointError("the adapter changes no weight.")
        base, dropout = self.config.base_model_name_or_path, float(self.config.lora_dropout)
        return Adapter(name, base, self.names.spec, updates, weights, dropout)

    def _require(self, name: str) -> HFWeight:
        """Return the weight with a name in the adapter's files."""
        weight = self.names.get(name)
        if weight is None:
            kind = self.names.architecture or type(self.module).__name__
            raise CheckpointError(
                f"the adapter changes {shorten(name, 100)}, which this model ({kind}) does not "
                "have: was the adapter trained on another base?"
            )
        return weight

    def _drop_copies_of_base(self) -> None:
        """Drop whole weights that equal the base's: peft saves embeddings with its layers."""
        kept: dict[str, Tensor] = {}
        for name, tensor in self.tensors.whole.items():
            weight = self.names.get(name)
            base = self.weights.get(weight.local[0]) if weight and len(weight.local) == 1 else None
            if base is None or base.is_meta or base.shape != tensor.shape:
                same = False
            else:
                same = torch.equal(base, tensor.to(base.device, base.dtype))
            if not same:
                kept[name] = tensor
        self.tensors = _Tensors(self.tensors.parts, kept)

    def _unties(self) -> bool:
        """Return whether the adapter changes one of two tied matrices and not the other.

        PEFT gives each of the two matrices its own update, unless `ensure_weight_tying` is set.
        """
        if not any(getattr(head, "tied", False) for head in self.names.spec.heads):
            return False
        whole, parts = self.tensors.whole, self.tensors.parts
        matrices = [f"{path}.weight" for path in parts if _TOKENS not in parts[path]]
        weights = [self.names.get(name) for name in (*matrices, *whole)]
        if not any(weight and "tokens.weight" in weight.local for weight in weights):
            return False
        untied, changed = self.names.untied(self.tensors.names), dict[str, str]()
        for name in (*matrices, *whole):
            if (weight := untied.get(name)) is not None:
                changed |= dict.fromkeys(weight.local, name)
        heads = {f"heads.{head.kind}.weight" for head in untied.spec.heads}
        head = next((changed[name] for name in heads if name in changed), None)
        table = changed.get("tokens.weight")
        if head is None and table is None:
            return False
        both = [whole[name] for name in (head, table) if name is not None and name in whole]
        if len(both) == 2 and torch.equal(*both):
            return False
        names = [name.removesuffix(".weight").rpartition(".")[2] for name in (head, table) if name]
        ties = self.config.ensure_weight_tying
        return not (ties and any(name in _TIED_NAMES for name in names))

    def _resize_vocabulary(self) -> None:
        """Take over the vocabulary size of the adapter's token embeddings, if it has its own."""
        for name, tensor in self.tensors.whole.items():
            weight = self.names.get(name)
            if weight is None or weight.local != ("tokens.weight",) or tensor.ndim != 2:
                continue
            spec, size = self.names.spec, len(tensor)
            if size != spec.vocab_size and tensor.shape[1] == self.names.shapes["tokens.weight"][1]:
                spec = spec.replace(vocab_size=size)
                self.names = replace(self.names, spec=spec, shapes=_shapes(spec))

    def _read_whole(self) -> dict[str, Tensor]:
        """Return the weights that replace those of the base, by their names in the model."""
        weights: dict[str, Tensor] = {}
        for name, tensor in self.tensors.whole.items():
            try:
                weights |= self._require(name).split(tensor, self.names.shapes)
            except CheckpointError as error:
                raise CheckpointError(
                    str(error).replace("config.json describes", "the base model has")
                ) from None
        return weights

    def _copy_to_new_heads(self, changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of new heads that the base has under another name (BERT's pooler).

        `changed` are the weights that the adapter replaces.
        """
        copied: dict[str, Tensor] = {}
        spec, new = self.module.spec, self.names.spec.heads
        if self.names.family is None or spec == self.names.spec:
            return copied
        kinds = {head.kind for head in new} - {head.kind for head in spec.heads}
        heads = tuple(f"heads.{kind}." for kind in kinds)
        missing = {name for name in self.names.shapes if name.startswith(heads)} - changed.keys()
        if missing:
            hf = to_hf_config(exported_spec(spec), self.names.family.model_type)
            known = weight_map(
                hf.family, hf.architecture, exported_spec(spec), _shapes(exported_spec(spec))
            )
            of_base = {weight.hf: weight.local[0] for weight in known if len(weight.local) == 1}
            for weight in self.names.weights.values():
                if missing.issuperset(weight.local) and of_base.get(weight.hf) in self.weights:
                    copied[weight.local[0]] = self.weights[of_base[weight.hf]]
        return copied

    def _read_base_weight(self, name: str) -> Tensor:
        """Return a weight of the base. A head that the adapter unties has the token embeddings.

        Raises SpecError if the weight is packed or quantised.
        """
        name = name if name in self.weights else untied_original(name, self.names.spec) or name
        if name not in self.weights:
            raise SpecError(
                f"the adapter updates {name}, which is packed or quantised in this model: load the "
                "base without pack and quantize, or load the folder of the adapter."
            )
        return self.weights[name]

    def _replace_rows(self, path: str, rows: Tensor) -> dict[str, Tensor]:
        """Return the token embeddings with the rows of `trainable_token_indices` replaced."""
        indices = self.config.trainable_token_indices
        if isinstance(indices, Mapping):
            indices = next((i for name, i in indices.items() if _ends_with(path, name)), None)
        local = self._require(f"{path}.weight").local
        if not isinstance(indices, list) or len(indices) != len(rows) or len(local) != 1:
            raise CheckpointError(
                f'"trainable_token_indices" of {CONFIG} does not fit {path}.{_TOKENS}.'
            )
        table = self._read_base_weight(local[0]).clone()
        if rows.shape[1] != table.shape[1] or not all(0 <= i < len(table) for i in indices):
            raise CheckpointError(f"{path}.{_TOKENS} does not fit the token embeddings.")
        table[torch.tensor(indices, device=table.device)] = rows.to(table.device, table.dtype)
        return {local[0]: table}

    def _read_update(self, path: str, parts: Mapping[str, Tensor]) -> dict[str, LowRankUpdate]:
        """Return the updates of a matrix of the files, by the names of its parts in the model."""
        if _EMBEDDING_A in parts and _EMBEDDING_B in parts:  # the update is (B A)^T
            a, b = parts[_EMBEDDING_B].T, parts[_EMBEDDING_A].T
        elif _A in parts and _B in parts:
            a, b = parts[_A], parts[_B]
        else:
            raise CheckpointError(f"{path} has {', '.join(parts)}: one matrix is missing.")
        magnitude = parts.get(_MAGNITUDE)
        if magnitude is not None and _A not in parts:
            raise CheckpointError(f"{path}: DoRA of token embeddings is not supported.")
        if (magnitude is not None) != self.config.use_dora:
            raise CheckpointError(f'{path}: "use_dora" of {CONFIG} does not fit the tensors.')
        by_parameter = bool(self.config.target_parameters)
        if by_parameter and self.names.get(f"{path}.weight") is None:
            return self._read_expert_updates(path, a, b)
        weight = self._require(f"{path}.weight")
        if not by_parameter:
            _check_target(self.config, path)
        rows = [self.names.shapes[name][0] for name in weight.local]
        inputs = self.names.shapes[weight.local[0]][-1]
        if (
            a.ndim != 2
            or a.shape[1:] != (inputs,)
            or b.shape != (sum(rows), len(a))
            or weight.experts
        ):
            raise CheckpointError(
                f"{path} has matrices {list(a.shape)} and {list(b.shape)}, which do not fit a "
                f"matrix [{sum(rows)}, {inputs}]."
            )
        scale = self.config.scale(path, len(a))
        local_b = weight.unfuse(b, weight.local, self.names.shapes)
        local_magnitude: dict[str, Tensor] = {}
        if magnitude is not None:
            local_magnitude = weight.unfuse(magnitude.flatten(), weight.local, self.names.shapes)
        return {
            name: LowRankUpdate(a, each, scale, local_magnitude.get(name))
            for name, each in local_b.items()
        }

    def _read_expert_updates(self, path: str, a: Tensor, b: Tensor) -> dict[str, LowRankUpdate]:
        """Return the updates of all experts, whose matrices peft adapts as one parameter.

        A is [E r, I] with the experts one after another, B is [O, r E] with the experts in turn.
        """
        module = path.replace(".base_layer", "")
        for weight in self.names.weights.values():
            if not weight.experts or weight.hf.rpartition(".")[0] != self.names.base + module:
                continue
            first = weight.names_by_expert[0]
            rows = sum(self.names.shapes[name][0] for name in first)
            if a.shape[1] != self.names.shapes[first[0]][-1] or len(b) != rows:
                continue
            rank = len(a) // weight.experts
            scale = self.config.scale(weight.hf.removeprefix(self.names.base), rank)
            by_expert = b.reshape(rows, rank, weight.experts)
            updates: dict[str, LowRankUpdate] = {}
            for expert, names in enumerate(weight.names_by_expert):
                own_a = a[expert * rank : (expert + 1) * rank]
                own_b = weight.unfuse(by_expert[:, :, expert], names, self.names.shapes)
                updates |= {name: LowRankUpdate(own_a, each, scale) for name, each in own_b.items()}
            return updates
        raise CheckpointError(
            f"{path} has matrices {list(a.shape)} and {list(b.shape)}, which fit no parameter of "
            "this model."
        )


def _match_pattern(patterns: Mapping[str, Any] | None, path: str, default: Any) -> Any:
    """Return the value of the first pattern that matches the end of a path, as in peft."""
    for pattern, value in (patterns or {}).items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error:
            raise CheckpointError(
                f"{CONFIG}: {shorten(pattern)!r} is no pattern of names."
            ) from None
    return default


def _ends_with(path: str, name: str) -> bool:
    """Return whether the last parts of a path are `name`."""
    return path == name or path.endswith(f".{name}")


def _check_target(config: PeftOptions, path: str) -> None:
    """Raise CheckpointError if `target_modules` does not select a module that has an update."""
    targets = config.target_modules
    if isinstance(targets, list):
        chosen = any(_ends_with(path, one) for one in targets)
    elif isinstance(targets, str) and targets != "all-linear":
        try:
            chosen = re.fullmatch(targets, path) is not None
        except re.error:
            raise CheckpointError(
                f'"target_modules" of {CONFIG} is no regular expression: {shorten(targets, 100)}.'
            ) from None
    else:
        chosen = True
    if not chosen:
        raise CheckpointError(
            f'{path} has an update, but "target_modules" of {CONFIG} does not select it.'
        )
