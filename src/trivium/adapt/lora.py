"""LoRA (Hu et al. 2021): trainable low-rank updates of frozen weight matrices.

Shape letters: I input features, O output features, r rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.adapt.bitsandbytes_layers import QuantizedLinear
from trivium.adapt.freezing import ParameterCounts, set_trainable
from trivium.errors import SpecError, did_you_mean
from trivium.models import LanguageModule
from trivium.models.heads.vocabulary import VocabularyHead
from trivium.nn.packed_linear import Int8Linear, PackedLinear
from trivium.nn.part import Part

_ALL, _TASK_HEADS = "all-linear", "task-heads"

_NOT_MERGED = (
    "an adapter cannot be merged into packed or quantised weights: load the base without pack and "
    "quantize."
)

LORA_TENSORS = ("lora_a", "lora_b", "dora_gain")
"""The names that the tensors of an update have inside an adapted layer."""


class LoRA(Part):
    """The configuration of a LoRA adapter.

    >>> LoRA(rank=4, targets=("attention", "feed_forward")).scale
    4.0

    Args:
        rank: the rank r of each low-rank update B A.
        alpha: each update is multiplied by alpha / r. With this factor, the learning rate need not
            be changed when the rank changes.
        dropout: the dropout probability for the input of A during training.
        targets: the linear layers between token embeddings and heads that get an update. Each entry
            is a part of a module path, in which * stands for any names: "query", "attention",
            "layers.3.attention.value", "decoder.*.query". "all-linear" selects all of these layers.
        trained: modules or parameters that are fully trained and saved alongside the adapter. The
            entries have the same form as `targets`. "task-heads" selects all heads except
            vocabulary heads.
    """

    rank: Annotated[int, Field(gt=0)] = 8
    alpha: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 16.0
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("query", "value")
    trained: tuple[str, ...] = (_TASK_HEADS,)

    @property
    def scale(self) -> float:
        """The factor alpha / r by which the low-rank update B A is multiplied."""
        return self.alpha / self.rank


class LoRALinear(nn.Linear):
    """A linear layer with a LoRA update: y = W x + b + scale * B A dropout(x).

    If `base` is an `nn.Linear`, its parameters W and b become those of this layer and keep their
    names. Any other layer (packed or quantised weights) becomes the submodule `base`. A and B are
    float32 or wider in training, because their optimizer steps are small.

    With DoRA (Liu et al. 2024, equation 5), the rows of W + scale * B A are rescaled to the trained
    `magnitude` m: y = g (W x + scale * B A x) + b with g = m / ||W + scale * B A||, one factor per
    output. g is computed only once, so that an adapter with DoRA can be used, but not trained.
    Source: Hu et al. 2021, equation 3.

    Args:
        base: the layer W x + b.
        lora_a: the matrix A [r, I].
        lora_b: the matrix B [O, r].
        scale: the factor of the update.
        dropout: the dropout probability for the input of A during training.
        magnitude: DoRA's magnitudes [O]; None for a plain LoRA update.
    """

    base: nn.Module | None
    dora_gain: Tensor | None

    def __init__(
        self,
        base: nn.Module,
        lora_a: Tensor,
        lora_b: Tensor,
        *,
        scale: float,
        dropout: float = 0.0,
        magnitude: Tensor | None = None,
    ) -> None:
        nn.Module.__init__(self)  # nn.Linear.__init__ would allocate another matrix
        self.in_features, self.out_features = lora_a.shape[1], lora_b.shape[0]
        self.base, self.scale, self.dropout = None, scale, dropout
        if type(base) is nn.Linear:
            self.weight, self.bias = base.weight, base.bias
        else:
            self.base = base
            self.register_parameter("weight", None)
            self.register_parameter("bias", None)
        self.lora_a, self.lora_b = nn.Parameter(lora_a), nn.Parameter(lora_b)
        gain = None if magnitude is None else magnitude / self._compute_row_norms()
        self.register_buffer("dora_gain", gain)
        self.train(base.training)

    def with_base(self, base: nn.Module) -> LoRALinear:
        """Return a layer with the same update of another base (such as the base's packed weights).

        For DoRA, the norms are computed from the weights of the new base, as in `peft`.
        """
        layer = LoRALinear(
            base,
            self.lora_a.detach(),
            self.lora_b.detach(),
            scale=self.scale,
            dropout=self.dropout,
            magnitude=self.magnitude,
        )
        return layer.train(self.training)

    @property
    def update(self) -> Tensor:
        """The update scale * B A, [O, I]."""
        return self.scale * (self.lora_b.detach() @ self.lora_a.detach())

    @property
    def magnitude(self) -> Tensor | None:
        """DoRA's magnitudes [O]: the norms of the rows of the merged weight; None for LoRA."""
        return None if self.dora_gain is None else self.dora_gain * self._compute_row_norms()

    def _compute_row_norms(self) -> Tensor:
        """Return the norms [O] of the rows of W + scale * B A."""
        a = self.lora_a
        weight = get_dense_weight(self if self.base is None else self.base, a.dtype, a.device)
        return torch.linalg.norm(weight + self.update, dim=1).to(weight.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return W x + b plus the LoRA update for the input x: [..., I] -> [..., O]."""
        x = F.dropout(input, self.dropout, self.training)
        low_rank = F.linear(x, self.lora_a.to(x.dtype)) * self.scale
        update = F.linear(low_rank, self.lora_b.to(low_rank.dtype))
        if self.base is None:
            output, bias = F.linear(input, self.weight, self.bias), self.bias
        else:
            output, bias = self.base(input), getattr(self.base, "bias", None)
        if self.dora_gain is None or self.scale == 0.0:  # disabled
            return output + update
        if bias is None:
            return (output + update) * self.dora_gain
        return (output - bias + update) * self.dora_gain + bias

    def merged_weight(self) -> Tensor:
        """Return the merged weight W + scale * B A, [O, I], in the dtype of W.

        Raises:
            SpecError: the weights of the base are packed or quantised for inference.
        """
        if isinstance(self.base, PackedLinear | Int8Linear):
            raise SpecError(_NOT_MERGED)
        weight = get_dense_weight(self.base or self, self.lora_a.dtype, self.lora_a.device)
        merged = weight.detach() + self.update.to(weight.device)
        if self.dora_gain is not None:
            merged = merged * self.dora_gain[:, None]
        return merged.to(weight.dtype)


def is_quantized(layer: nn.Module) -> bool:
    """Return whether a layer has packed or quantised weights."""
    return isinstance(layer, PackedLinear | Int8Linear | QuantizedLinear)


def get_dense_weight(layer: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix W [O, I] of a layer W x + b, even if it is packed or quantised.

    If W cannot be read, its columns are computed as the layer's outputs for unit vectors, in the
    given dtype and on the given device.
    """
    if type(layer) in (nn.Linear, LoRALinear):
        return layer.weight.detach()
    if isinstance(layer, QuantizedLinear):
        return layer.dequantize()
    with torch.no_grad():
        output = layer(torch.eye(layer.in_features, dtype=dtype, device=device))
        return (output if layer.bias is None else output - layer.bias).T


def make_lora_layer(base: nn.Linear, lora: LoRA, generator: torch.Generator) -> LoRALinear:
    """Make a LoRA layer whose output initially equals that of `base`.

    A is initialized from a uniform distribution in +-I^-0.5, as in the authors' code; the paper
    uses a normal distribution. B is initialized with zeros. If `base` is on the meta device, A and
    B are on the CPU.
    """
    device = torch.device("cpu") if base.weight.is_meta else base.weight.device
    dtype = torch.promote_types(base.weight.dtype, torch.float32)
    bound = base.in_features**-0.5
    lora_a = torch.empty(lora.rank, base.in_features)
    lora_a.uniform_(-bound, bound, generator=generator)
    lora_a = lora_a.to(device, dtype)
    lora_b = torch.zeros(base.out_features, lora.rank, device=device, dtype=dtype)
    return LoRALinear(base, lora_a, lora_b, scale=lora.scale, dropout=lora.dropout)


def add_lora(model: LanguageModule, lora: LoRA, *, seed: int = 0) -> ParameterCounts:
    """Add a LoRA adapter to a model, in place. Only the adapter and `lora.trained` stay trainable.

    The outputs of the model do not change until the first training step. The model's `state_dict`
    keeps its names, and gains `lora_a` [r, I] and `lora_b` [O, r] for each adapted layer. `seed`
    determines the initialization of the adapter. Returns the number of trainable and of frozen
    parameters.

    Raises:
        SpecError: an entry of `lora.targets` or `lora.trained` matches nothing in the model, or the
            model already has an adapter. In these cases, the model is not changed.
    """
    layers, trained = find_target_layers(model, lora), find_trainable_names(model, lora)
    generator = torch.Generator().manual_seed(seed)
    for name, base in layers.items():
        replace_module(model, name, make_lora_layer(base, lora, generator))
    matrices = {f"{name}.lora_{matrix}" for name in layers for matrix in "ab"}
    return set_trainable(model, {*trained, *matrices})


def merged_state(
    model: LanguageModule, device: torch.device | str | None = None
) -> dict[str, Tensor]:
    """Return the `state_dict` of the model with the LoRA updates merged into the weights.

    A new model with the same spec can load the result. If the model has no adapter, the result is
    its plain `state_dict`. Weights that bitsandbytes has quantised are dequantised, so that the
    merged model has the weights on which the adapter was trained.

    Args:
        model: the model.
        device: the device to move each tensor to; None leaves tensors on their device.

    Raises:
        SpecError: the weights of an adapted layer are packed or quantised for inference.
    """
    if any(isinstance(layer, PackedLinear | Int8Linear) for layer in model.modules()):
        raise SpecError(_NOT_MERGED)
    state = {
        name: each.detach().to(device or each.device) for name, each in model.state_dict().items()
    }
    for name, layer in model.named_modules():
        if isinstance(layer, LoRALinear):
            weight, bias = layer.merged_weight(), getattr(layer.base or layer, "bias", None)
        elif isinstance(layer, QuantizedLinear) and not name.endswith(".base"):
            weight, bias = layer.dequantize(), layer.bias
        else:
            continue
        state[f"{name}.weight"] = weight.to(device or weight.device)
        if isinstance(bias, Tensor):
            state[f"{name}.bias"] = bias.detach().to(device or bias.device)
        for own in LORA_TENSORS:
            state.pop(f"{name}.{own}", None)
    return state


def adapted_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """Return the linear layers that have a LoRA update, as a dict of module path -> layer."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LoRALinear)}


@contextmanager
def disable_adapter(model: nn.Module) -> Iterator[None]:
    """Disable the LoRA adapter during the `with` block, so that only the base model is used."""
    layers = adapted_layers(model).values()
    scales = [layer.scale for layer in layers]
    try:
        for layer in layers:
            layer.scale = 0.0
        yield
    finally:
        for layer, scale in zip(layers, scales):
            layer.scale = scale


def find_target_layers(model: LanguageModule, lora: LoRA) -> dict[str, nn.Linear]:
    """Return the linear layers that match `lora.targets`, as a dict of module path -> layer.

    Raises:
        SpecError: a target matches no linear layer, or the model already has an adapter.
    """
    if adapted_layers(model):
        raise SpecError("this model has a LoRA adapter already: merge it first (`merge_adapter`).")
    blocks = {id(module) for block in model.blocks for module in block.modules()}
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in blocks
    }
    chosen = _select_names(lora.targets, list(layers), {_ALL: list(layers)}, "linear layer")
    return {name: layers[name] for name in chosen}


def find_trainable_names(model: LanguageModule, lora: LoRA) -> list[str]:
    """Return the names of the parameters that match `lora.trained`.

    Raises:
        SpecError: an entry of `lora.trained` matches no parameter.
    """
    names = [n for n, _ in model.named_parameters() if not n.endswith((".lora_a", ".lora_b"))]
    kinds = [k for k, module in model.heads.items() if not isinstance(module, VocabularyHead)]
    heads = [name for name in names if name.startswith(tuple(f"heads.{kind}." for kind in kinds))]
    return _select_names(lora.trained, names, {_TASK_HEADS: heads}, "module or parameter")


def _select_names(
    paths: Iterable[str], names: list[str], groups: Mapping[str, list[str]], what: str
) -> list[str]:
    """Return the `names` (dotted paths) that match at least one entry of `paths`, in their order.

    A path matches names that contain it as consecutive components, in shell syntax. A path that is
    a key of `groups` selects the names listed there instead. `what` is the kind of names, for the
    error message.

    Raises:
        SpecError: a path other than "task-heads" matches nothing.
    """
    chosen: set[str] = set()
    for path in paths:
        path_matches = [name for name in names if fnmatchcase(f".{name}.", f"*.{path}.*")]
        matches = groups.get(path, path_matches)
        if not matches and path != _TASK_HEADS:
            known = [*dict.fromkeys(part for name in names for part in name.split(".")), *groups]
            known = [part for part in known if not part.isdecimal()]
            raise SpecError(
                f'LoRA: this model has no {what} "{path}" that can be trained. Its names are '
                f"{', '.join(known)}; join those of a path by dots, with * for any between, as in "
                f'"{names[-1]}".{did_you_mean(path, known)}'
            )
        chosen.update(matches)
    return [name for name in names if name in chosen]


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the submodule at the path `name` of a model by `module`."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
