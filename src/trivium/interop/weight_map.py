"""Convert names and layouts of weights between Hugging Face files and a `state_dict`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from trivium.errors import CheckpointError, SpecError
from trivium.interop.family import Family, attention_of
from trivium.lazy_tensors import LazyTensors
from trivium.models.transformer import TransformerSpec


@dataclass(frozen=True)
class HFWeight:
    """A tensor of a Hugging Face file and the tensors of the module that it contains.

    `join` makes the file's tensor in four steps: fuse the rows of the module's tensors (of each
    expert), transpose the matrix, stack the experts, and reshape. `split` reverses these steps.

    Args:
        hf: the name in the file.
        local: names in the module's `state_dict`; the rows of several tensors are concatenated in
            the file.
        groups: the number of key-value heads if the file groups the rows of several tensors by
            head: all parts of head 0, then all parts of head 1, ... (BLOOM, GPT-NeoX, Falcon);
            otherwise 1.
        interleaved: whether the rows of several tensors alternate in the file (gpt-oss).
        transposed: whether the file stores a matrix as [in, out].
        experts: the number of experts on the first axis of the file's tensor; 0: no such axis.
            `local` then has the names of the first expert, those of the second expert, and so on.
        hf_shape: the shape in the file, if the file's tensor has other axes.
    """

    hf: str
    local: tuple[str, ...]
    groups: int = 1
    interleaved: bool = False
    transposed: bool = False
    experts: int = 0
    hf_shape: tuple[int, ...] | None = None

    @property
    def names_by_expert(self) -> list[tuple[str, ...]]:
        """The names in `local` of each expert; all of them together if there is no expert axis."""
        size = len(self.local) // max(self.experts, 1)
        return [self.local[i : i + size] for i in range(0, len(self.local), size)]

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Merge the module's tensors into the single tensor that the Hugging Face file stores."""
        parts = [self.fuse([tensors[name] for name in names]) for names in self.names_by_expert]
        parts = [part.T.contiguous() for part in parts] if self.transposed else parts
        x = torch.stack(parts) if self.experts else parts[0]
        return x if self.hf_shape is None else x.reshape(self.hf_shape)

    def split(self, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Split the tensor stored in the Hugging Face file into the module's tensors.

        Raises:
            CheckpointError: the tensor's shape does not match the module's tensors (`shapes`).
        """
        self.check_shape(tensor.shape, shapes)
        return {name: self.select(name, tensor, shapes) for name in self.local}

    def check_shape(self, stored: torch.Size, shapes: Mapping[str, torch.Size]) -> None:
        """Raise CheckpointError if the shape of the file's tensor does not match the module's."""
        expected = self._shape_before_reshape(shapes)
        if stored not in (expected, self.hf_shape):
            raise CheckpointError(
                f"{self.hf} is {list(stored)}, but config.json describes "
                f"{list(self.hf_shape or expected)}."
            )

    def select(self, name: str, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> Tensor:
        """Return one of the module's tensors, given the tensor of the file.

        The result is a view, which need not be contiguous. Only rows that the file groups by head,
        or alternates, are copied.
        """
        x = tensor
        if self.hf_shape is not None:
            x = x.reshape(self._shape_before_reshape(shapes))
        expert = self.local.index(name) // len(self.names_by_expert[0])
        x = x[expert] if self.experts else x
        return self._part(x.T if self.transposed else x, name, self.names_by_expert[expert], shapes)

    def _shape_before_reshape(self, shapes: Mapping[str, torch.Size]) -> torch.Size:
        """Return the shape of the file's tensor before the last step of `join`."""
        empty = {name: torch.empty(shapes[name], device="meta") for name in self.local}
        return replace(self, hf_shape=None).join(empty).shape

    def fuse(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate the rows of the parts of a fused tensor: [O_i, ...] -> [sum of O_i, ...].

        If the file groups the rows by head, or alternates them, the result does, too.
        """
        if len(parts) == 1:
            return parts[0]
        groups = self._num_groups(len(parts[0]))
        return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)

    def unfuse(
        self, x: Tensor, names: Sequence[str], shapes: Mapping[str, torch.Size]
    ) -> dict[str, Tensor]:
        """Split a fused tensor into its parts, by name: the inverse of `fuse`."""
        return {name: self._part(x, name, names, shapes) for name in names}

    def _part(
        self, x: Tensor, name: str, names: Sequence[str], shapes: Mapping[str, torch.Size]
    ) -> Tensor:
        """Return the part of a fused tensor that is called `name`, given the names of all parts."""
        groups = self._num_groups(shapes[names[0]][0])
        sizes = [shapes[each][0] // groups for each in names]
        parts = x.unflatten(0, (groups, -1)).split(sizes, 1)
        return parts[names.index(name)].flatten(0, 1)

    def _num_groups(self, rows: int) -> int:
        """Return the number of groups of rows, given the number of rows of the first part."""
        return rows if self.interleaved else self.groups


def weight_map(
    family: Family,
    architecture: str,
    spec: TransformerSpec,
    names: Collection[str],
    *,
    reading: bool = False,
) -> list[HFWeight]:
    """Map each `state_dict` name in `names` to its name(s) and layout in a Hugging Face file.

    For import (`reading`), the result includes all alternative names that a file may use.
    Otherwise, it contains only the names that export writes.

    Raises:
        SpecError: the family has no name for one of the tensors.
    """
    names, hf_shapes = {*names}, family.hf_shapes(spec)
    weights = [
        HFWeight(
            hf=hf,
            local=local,
            groups=attention_of(spec).kv_heads if len(local) > 1 and family.fused_per_head else 1,
            interleaved=hf.split(".")[-1] in family.interleaved,
            transposed=hf.removesuffix(".weight").split(".")[-1] in family.transposed,
            experts=experts,
            hf_shape=hf_shapes.get(hf.split(".")[-1]),
        )
        for hf, local, experts in _mapping_entries(family, architecture, spec, reading=reading)
        if local[0] in names
    ]
    unnamed = names - {name for weight in weights for name in weight.local}
    if any(".lora_" in name for name in unnamed):
        raise SpecError(
            "a model with a LoRA adapter cannot be exported as a whole: merge the adapter first."
        )
    if unnamed:
        raise SpecError(f"{family.model_type} has no weight for {min(unnamed)}.")
    return weights


def to_state_dict(
    family: Family,
    weights: list[HFWeight],
    tensors: Mapping[str, Tensor],
    stored_shapes: Mapping[str, torch.Size],
    shapes: Mapping[str, torch.Size],
    *,
    base: str = "",
) -> LazyTensors:
    """Convert the tensors of a file to a `state_dict`, each when it is looked up.

    Names and shapes are checked immediately. Values are checked when they are looked up: a tensor
    that is not finite, or two tied weights that differ, raise CheckpointError. No values are
    checked on the meta device.

    Args:
        tensors: the tensors of the file.
        stored_shapes: their shapes.
        shapes: the shapes of the module's tensors.
        base: the base prefix if it is missing from the names in the file, else "".

    Raises:
        CheckpointError: a tensor that is missing, unknown, of a shape that the config does not
            describe, or nonzero although it is in the family's `must_be_zero`.
    """
    in_file = {base + name: name for name in tensors}
    known = {weight.hf for weight in weights}
    sources = {name: file_name for name, file_name in in_file.items() if name in known}
    others = sorted(in_file.keys() - known)
    originals = {name: tied_original(family, name, known) for name in others}
    tied = defaultdict[str, list[str]](list)
    for name, original in originals.items():
        if original is not None:  # a file may have a tied weight only under the name of a copy
            tied[sources.setdefault(original, in_file[name])].append(in_file[name])
        elif name in family.must_be_zero:
            _check_zero(name, tensors[in_file[name]])
    unknown = [
        name
        for name in others
        if originals[name] is None
        and name not in family.must_be_zero
        and not any(re.fullmatch(pattern, name) for pattern in family.buffers)
    ]

    def read(weight: HFWeight, local: str) -> Tensor:
        """Return one tensor of the `state_dict`, from the tensor of the file that contains it."""
        name = sources[weight.hf]
        for copy in tied[name]:
            _check_tied(base + copy, tensors[copy], weight.hf, tensors[name])
        tensor = weight.select(local, tensors[name], shapes)
        check_finite(local, tensor)
        return tensor

    found = [weight for weight in weights if weight.hf in sources]
    for weight in found:
        weight.check_shape(stored_shapes[sources[weight.hf]], shapes)
    state = {local: partial(read, weight, local) for weight in found for local in weight.local}
    missing = [weight.hf for weight in weights if not state.keys() >= {*weight.local}]
    if unknown or missing:
        raise CheckpointError(
            "the weights are not those of the model that config.json describes."
            + _format_names("Not part of it", unknown, base)
            + _format_names("Missing", missing, base)
        )
    return LazyTensors(state)


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise CheckpointError if a tensor contains infinity or NaN (the file is damaged)."""
    if tensor.is_meta:
        return
    least, most = torch.aminmax(tensor)
    if not (torch.isfinite(least) and torch.isfinite(most)):
        raise CheckpointError(f"{name} holds numbers that are not finite: the file is damaged.")


def _check_tied(name: str, tensor: Tensor, original: str, tied: Tensor) -> None:
    """Raise CheckpointError if a tensor differs from the weight that it must be tied to."""
    if not tied.is_meta and not torch.equal(tied, tensor.to(tied.dtype)):
        raise CheckpointError(
            f"{name} differs from {original}, but config.json says that they are tied."
        )


def _check_zero(name: str, tensor: Tensor) -> None:
    """Raise CheckpointError if a tensor contains a value other than 0."""
    if not tensor.is_meta and tensor.any():
        raise CheckpointError(f"{name} is not 0 everywhere, which is not supported.")


def to_hf(
    family: Family, weights: list[HFWeight], state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Convert a `state_dict` to the tensors of a Hugging Face file.

    Raises:
        SpecError: the family's mapping of weight names gives one tensor two names in the file, and
            `tied_aliases` does not declare these names as tied.
    """
    tensors: dict[str, Tensor] = {}
    written: dict[str, str] = {}
    for weight in weights:
        whole = weight.join(state)
        first = next((written[name] for name in weight.local if name in written), None)
        if first is not None and tied_original(family, weight.hf, {first}) is None:
            raise SpecError(
                f"{family.model_type} has two names for {weight.local[0]}, {first} and "
                f"{weight.hf}: remove one from the family's weights, or declare it in tied_aliases."
            )
        # safetensors refuses two names for one storage.
        tensors[weight.hf] = whole if first is None else whole.clone()
        written |= dict.fromkeys(weight.local, weight.hf)
    return tensors


def missing_prefix(family: Family, architecture: str, names: Collection[str]) -> str:
    """Return the family's base prefix if no tensor name in a file starts with it, else "".

    Files of models without heads lack the base prefix.
    """
    base = family.base_prefix_of(architecture)
    return "" if any(name.startswith(base) for name in names) else base


_Entry = tuple[str, tuple[str, ...], int]


def _mapping_entries(
    family: Family, architecture: str, spec: TransformerSpec, *, reading: bool
) -> Iterator[_Entry]:
    """Yield the entries of a family's mapping of weight names for all layers, experts and heads.

    An entry is (Hugging Face name, names in the module, `HFWeight.experts`). A mapping may name
    modules, so there are entries for weights and biases that the model does not have.
    """
    body = family.weights(spec) if callable(family.weights) else family.weights
    layers = max(stack.num_layers for stack in spec.stacks)
    every_layer = [layer for stack in spec.stacks for layer in stack.every_layer]
    count = max(getattr(layer.feed_forward, "num_experts", 1) for layer in every_layer)
    num_heads = max(getattr(layer.mixer, "num_heads", 1) for layer in every_layer)
    base, norm = family.base_prefix_of(architecture), (*every_layer[0].norms, "pre_norm")[0]
    for hf, local in [*body.items(), *(family.aliases.items() if reading else ())]:
        parts = (local,) if isinstance(local, str) else local
        in_head = parts[0].startswith("heads.")
        name = hf if in_head else base + hf.removeprefix(family.base)
        fused = count if "{e}" in parts[0] and "{e}" not in name else 0
        for layer in range(layers if "{i}" in name else 1):
            for expert in range(count if "{e}" in name else num_heads if "{h}" in name else 1):
                of = range(fused) if fused else [expert]
                here = [part.format(i=layer, e=e, h=e, norm=norm) for e in of for part in parts]
                yield from _entries_for_name(name.format(i=layer, e=expert, h=expert), here, fused)
    for head in spec.heads:
        for hf, local in family.head_weight_names(architecture, head.kind).items():
            yield from _entries_for_name(hf, [local])


def _entries_for_name(hf: str, local: list[str], experts: int = 0) -> Iterator[_Entry]:
    """Yield the entries of a mapping of weight names for a Hugging Face name `hf`.

    `hf` names a tensor or a module. The tensors of a module are `hf`.weight and `hf`.bias.
    """
    yield hf, tuple(local), experts
    for kind in ("weight", "bias"):
        yield f"{hf}.{kind}", tuple(f"{name}.{kind}" for name in local), experts


def _format_names(what: str, names: list[str], base: str) -> str:
    """Format the first 3 tensor names for an error message; "" if there are no names.

    `base` is the prefix that the names in the file lack, so the message leaves it out.
    """
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" {what}: {', '.join(name.removeprefix(base) for name in names[:3])}{more}."


def tied_original(family: Family, name: str, names: Collection[str]) -> str | None:
    """Return the tensor in `names` of which the tensor `name` is a tied copy, or None."""
    original = family.tied_aliases.get(name)
    while original is not None and original not in names:
        original = family.tied_aliases.get(original)
    return original
