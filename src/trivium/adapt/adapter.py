"""Add an adapter that was read from files to a model. The base and the result share weights."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trivium.adapt.lora import LoRALinear, replace_module
from trivium.errors import SpecError
from trivium.lazy_tensors import LazyTensors
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.models.heads.vocabulary import VocabularyHead
from trivium.models.transformer import TransformerSpec
from trivium.nn.packed_linear import Int8Linear, PackedLinear

LINEAR = (nn.Linear, PackedLinear, Int8Linear)
"""The layers W x + b to which a low-rank update can be added."""


@dataclass(frozen=True)
class LowRankUpdate:
    """The update scale * B A of a matrix W.

    Args:
        lora_a: the matrix A [r, I].
        lora_b: the matrix B [O, r].
        scale: the factor of B A.
        magnitude: DoRA's magnitudes [O]; None for a plain LoRA update.
    """

    lora_a: Tensor
    lora_b: Tensor
    scale: float
    magnitude: Tensor | None = None

    def apply_to(self, weight: Tensor) -> Tensor:
        """Return the updated matrix [O, I], in the dtype of `weight`."""
        exact = torch.promote_types(weight.dtype, torch.float32)
        a, b = (each.to(weight.device, exact) for each in (self.lora_a, self.lora_b))
        updated = weight.to(exact) + self.scale * (b @ a)
        if self.magnitude is not None:
            magnitude = self.magnitude.to(weight.device, exact)
            updated = updated * (magnitude / torch.linalg.norm(updated, dim=1))[:, None]
        return updated.to(weight.dtype)


@dataclass(frozen=True)
class Adapter:
    """An adapter for a base model, as read from its files.

    Args:
        name: the name of the adapter.
        base: path or hub name of the base model, as in the adapter's files; None if unknown.
        spec: the spec of the model with the adapter. It differs from the spec of the base if the
            adapter has a task head or additional tokens, or unties the output matrix from the token
            embeddings.
        updates: module path of a linear layer -> its update.
        weights: parameter name -> the value that replaces the base's value.
        dropout: the dropout probability with which the adapter was trained.
    """

    name: str
    base: str | None
    spec: Spec
    updates: Mapping[str, LowRankUpdate]
    weights: Mapping[str, Tensor]
    dropout: float = 0.0


def with_adapter(module: LanguageModule, adapter: Adapter) -> LanguageModule:
    """Return a copy of a model with an adapter. All other weights are shared with `module`.

    Raises:
        SpecError: the model has an adapter already, or a shape in the adapter does not fit.
    """
    if any(isinstance(layer, LoRALinear) for layer in module.modules()):
        raise SpecError("this model has a LoRA adapter already: merge it first (`merge_adapter`).")
    model, dtype, device = with_spec(module, adapter.spec), module.dtype, module.device
    for name, tensor in adapter.weights.items():
        _set_weight(model, name, tensor.to(device, dtype))
    for name, update in adapter.updates.items():
        magnitude = update.magnitude
        layer = LoRALinear(
            model.get_submodule(name),
            update.lora_a.to(device, dtype),
            update.lora_b.to(device, dtype),
            scale=update.scale,
            dropout=adapter.dropout,
            magnitude=None if magnitude is None else magnitude.to(device, dtype),
        )
        replace_module(model, name, layer)
    _check_shapes(model)
    return model.eval()


def merge_weights(base: Mapping[str, Tensor], adapter: Adapter) -> LazyTensors:
    """Return the weights of the base with an adapter merged, each when it is looked up.

    Args:
        base: the weights of the base model by name.
        adapter: the adapter, which was read for this base.

    Raises:
        SpecError: neither the adapter nor its base has a weight of the model.
    """

    def merge(name: str, original: str) -> Tensor:
        """Return the weight with a name, which is called `original` in the base."""
        if name in adapter.weights:
            return adapter.weights[name]
        path, _, last = name.rpartition(".")
        update = adapter.updates.get(path) if last == "weight" else None
        return base[original] if update is None else update.apply_to(base[original])

    merged: dict[str, Callable[[], Tensor]] = {}
    for name in build(adapter.spec, device="meta").state_dict():
        original = name if name in base else untied_original(name, adapter.spec) or name
        if original not in base and name not in adapter.weights:
            raise SpecError(f"neither the adapter nor its base has a value for {name}.")
        merged[name] = partial(merge, name, original)
    return LazyTensors(merged)


def untied_original(name: str, spec: Spec) -> str | None:
    """Return the token embeddings if `name` is the output matrix of an untied head, else None.

    A head that an adapter unties starts with these values.
    """
    untied = (head.kind for head in spec.heads if getattr(head, "tied", None) is False)
    return "tokens.weight" if name in {f"heads.{kind}.weight" for kind in untied} else None


def share_weights(module: LanguageModule) -> LanguageModule:
    """Return a copy of a module without its hooks. The copy shares all tensors with `module`."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    packed = (part.packed for part in module.modules() if isinstance(part, PackedLinear))
    memo: dict[int, Any] = {id(tensor): tensor for tensor in itertools.chain(tensors, packed)}
    states = (getattr(part, "quant_state", None) for part in module.modules())
    memo |= {id(state): state for state in states if state is not None}
    memo |= {id(part._forward_pre_hooks): OrderedDict() for part in module.modules()}
    return copy.deepcopy(module, memo)


def with_spec(module: LanguageModule, spec: Spec) -> LanguageModule:
    """Return a copy of a model with another spec. The copy shares its weights with `module`.

    The heads and the vocabulary size may differ. The weights of new heads are on the meta device.
    A head that becomes untied keeps the token embeddings of `module` as its output matrix.
    """
    shared = share_weights(module)
    if spec == module.spec:
        return shared
    model = build(spec, device="meta")
    for name, child in model.named_children():
        if name != "heads":
            setattr(model, name, getattr(shared, name, child))
    for head in spec.heads:
        if head.kind not in shared.heads:
            continue
        own = shared.heads[head.kind]
        untied = isinstance(own, VocabularyHead) and own.weight is None and own.packed is None
        if untied and not getattr(head, "tied", True):
            own.weight = nn.Parameter(shared.tokens.weight.detach())
        model.heads[head.kind] = own
    return model.eval()


def with_untied_heads(spec: TransformerSpec) -> TransformerSpec:
    """Return a copy of a spec in which all heads have their own output matrix (untied)."""
    return spec.replace(
        heads=tuple(
            head.replace(tied=False) if getattr(head, "tied", False) else head
            for head in spec.heads
        )
    )


def _set_weight(model: LanguageModule, name: str, value: Tensor) -> None:
    """Replace a parameter of a model, even if its layer is packed or quantised."""
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    if last == "weight" and (isinstance(owner, LINEAR) and type(owner) is not nn.Linear):
        plain = nn.Linear(owner.in_features, owner.out_features, bias=False, device="meta")
        plain.weight = nn.Parameter(value)
        plain.register_parameter("bias", owner.bias)  # type: ignore[arg-type]
        replace_module(model, path, plain)
        return
    setattr(owner, last, nn.Parameter(value))
    if isinstance(owner, nn.Embedding):
        owner.num_embeddings = len(value)
    if isinstance(owner, VocabularyHead) and owner.packed is not None:
        if last == "bias":
            owner.packed.register_parameter("bias", owner.bias)
        elif last == "weight":
            owner.packed = None
    if owner is model.tokens:
        tied = {head.kind for head in model.spec.heads if getattr(head, "tied", False)}
        for head in (model.heads[kind] for kind in tied):
            head.packed = None  # type: ignore[assignment]


def _check_shapes(model: LanguageModule) -> None:
    """Raise SpecError if a weight is missing, or its shape does not match the spec."""
    shapes = {
        name: each.shape for name, each in build(model.spec, device="meta").state_dict().items()
    }
    on_meta = model.device.type == "meta"
    for name, weight in model.named_parameters():
        if weight.is_meta and not on_meta:
            raise SpecError(f"neither the adapter nor its base has a value for {name}.")
        if name in shapes and weight.shape != shapes[name] and weight.is_floating_point():
            raise SpecError(
                f"{name} is {list(weight.shape)}, but the model with this adapter needs "
                f"{list(shapes[name])}: was the adapter trained on another base?"
            )
