"""Weights of a Hugging Face model as ours and back: strict at both ends."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trivium.errors import CheckpointError, SpecError
from trivium.interop.albert import ALBERT
from trivium.interop.bart import BART
from trivium.interop.bert import BERT
from trivium.interop.config import Config
from trivium.interop.electra import ELECTRA
from trivium.interop.family import Family
from trivium.interop.gpt1 import GPT1
from trivium.interop.gpt2 import GPT2
from trivium.interop.gpt_neo import GPT_NEO
from trivium.interop.llama import LLAMA
from trivium.interop.marian import MARIAN
from trivium.interop.mistral import MISTRAL
from trivium.interop.modernbert import MODERNBERT
from trivium.interop.opt import OPT
from trivium.interop.roberta import ROBERTA
from trivium.interop.t5 import T5
from trivium.models import Transformer, build
from trivium.spec import ModelSpec

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        BERT,
        ROBERTA,
        ALBERT,
        ELECTRA,
        MODERNBERT,
        T5,
        BART,
        MARIAN,
        GPT1,
        GPT2,
        GPT_NEO,
        OPT,
        LLAMA,
        MISTRAL,
    )
}
"""Every family that goes in and out, by `model_type`."""


def from_hugging_face(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Transformer:
    """The model that a `config.json` and the tensors of its weight files describe.

    The tensors become the parameters; none is copied unless theirs holds several of ours turned.

    Raises:
        CheckpointError: a model type, class or option that is not supported, a tensor that is
            missing, unknown or of another shape than the config describes.
    """
    family, architecture = _family_of(options, tensors)
    config = Config(options)
    tensors = _with_base(family, architecture, tensors)
    model_spec = family.read(config, architecture, tensors.keys())
    config.finish()
    model = build(model_spec, device="meta")
    weights = _import(family, model, architecture, tensors)
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(True)


def to_hugging_face(model: Transformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A model as the options of a `config.json` and named tensors.

    Raises:
        SpecError: no family of theirs is built like this model.
    """
    family = family_for(model.spec)
    architecture, options = family.write(model.spec)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    named: dict[str, Tensor] = {}
    held: set[tuple[str, ...]] = set()
    for row in family.table(model.spec, architecture):
        whole = row.join(weights)
        # A file of safetensors holds no tensor under two names.
        named[row.theirs] = whole.clone() if row.ours in held else whole
        held.add(row.ours)
    unnamed = weights.keys() - {name for ours in held for name in ours}
    if any(name.endswith((".lora_a", ".lora_b")) for name in unnamed):
        raise SpecError(
            "this model has a LoRA adapter, for which no class of theirs has a place: merge it "
            "first (trivium.adapt.merge_lora)."
        )
    return {"model_type": family.model_type, "architectures": [architecture], **options}, named


def family_for(model: ModelSpec) -> Family:
    """The family of theirs that has a word for everything in a spec."""
    for family in FAMILIES.values():
        if family.describes(model):
            return family
    known = ", ".join(FAMILIES)
    raise SpecError(
        f"no Hugging Face family is built like this model, so it cannot be exported; families: "
        f"{known}."
    )


def _family_of(options: Mapping[str, Any], tensors: Collection[str]) -> tuple[Family, str]:
    kind = options.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CheckpointError(
            f'config.json: "model_type" is {kind!r}, which is not supported; supported: {known}.'
        )
    family = FAMILIES[kind]
    architecture = (options.get("architectures") or [family.architectures[0]])[0]
    if architecture not in family.architectures:
        known = ", ".join(family.architectures)
        raise CheckpointError(
            f'config.json: "architectures" is {architecture!r}, which is not supported for {kind}; '
            f"supported: {known}."
        )
    return family, architecture


def _with_base(
    family: Family, architecture: str, tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """The tensors under the names that a model with a head has, body alone or not."""
    for pattern, name in family.renamed.items():
        tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
    base = family.base_of(architecture)
    if not base or any(name.startswith(base) for name in tensors):
        return tensors
    return {base + name: tensor for name, tensor in tensors.items()}


def _import(
    family: Family, model: Transformer, architecture: str, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    table = family.table(model.spec, architecture)
    used = {row.theirs for row in table}
    tensors = _with_originals(family, tensors, used)
    weights: dict[str, Tensor] = {}
    for row in table:
        name = row.theirs if row.theirs in tensors else row.otherwise
        if name not in tensors:
            raise CheckpointError(f"{row.theirs} is missing, which config.json describes.")
        weights |= row.split(tensors[name], shapes)
    filled = shapes.keys() - weights.keys()
    assert not filled, f"the table of {family.model_type} leaves out {sorted(filled)}"
    for name in _unused(family, tensors, used):
        if name in family.zeros:
            _require_zeros(name, tensors[name])
            continue
        original = _original(family, name, used)
        if original is None:
            raise CheckpointError(f"{name} is not part of the model that config.json describes.")
        if not torch.equal(tensors[name], tensors[original]):
            raise CheckpointError(
                f"{name} differs from {original}, but config.json says that they are one."
            )
    return weights


def _with_originals(
    family: Family, tensors: Mapping[str, Tensor], used: Collection[str]
) -> Mapping[str, Tensor]:
    """The tensors with those of tied ones that a file has under the name of a copy alone."""
    found = dict(tensors)
    for name in tensors.keys() - used:
        original = _original(family, name, used)
        if original is not None:
            found.setdefault(original, tensors[name])
    return found


def _original(family: Family, name: str, used: Collection[str]) -> str | None:
    """The name in the table that `name` is a copy of."""
    original = family.copies.get(name)
    while original is not None and original not in used:
        original = family.copies.get(original)
    return original


def _require_zeros(name: str, tensor: Tensor) -> None:
    if tensor.any():
        raise CheckpointError(f"{name} is not 0 everywhere, which is not supported.")


def _unused(family: Family, tensors: Mapping[str, Tensor], used: Collection[str]) -> Iterator[str]:
    harmless = [re.compile(pattern) for pattern in family.ignored]
    for name in tensors:
        if name not in used and not any(pattern.fullmatch(name) for pattern in harmless):
            yield name
