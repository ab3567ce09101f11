"""Convert the options and tensors of a Hugging Face model to a `Transformer`, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Size, Tensor

from trivium.errors import CheckpointError, SpecError, TriviumError, shorten
from trivium.interop.families import FAMILIES
from trivium.interop.family import Family
from trivium.interop.spec_config import HFConfig, read_spec, spec_to_config
from trivium.interop.weight_map import HFWeight, missing_prefix, to_hf, to_state_dict, weight_map
from trivium.lazy_tensors import LazyTensors
from trivium.models import Transformer, build
from trivium.models.base_model import Spec
from trivium.models.transformer import TransformerSpec


def from_hugging_face(
    options: Mapping[str, Any], tensors: Mapping[str, Tensor], *, allow_unknown_keys: bool = False
) -> Transformer:
    """Return the model described by a `config.json` and the tensors of its weight files.

    The tensors become the parameters without a copy, except fused and transposed tensors. If the
    tensors are on the meta device, so is the model. Otherwise as `read_hugging_face`.

    Raises:
        CheckpointError: as `read_hugging_face`, or a tensor that is not finite.
    """
    return build_with_weights(
        *read_hugging_face(options, tensors, allow_unknown_keys=allow_unknown_keys)
    )


def build_with_weights(spec: TransformerSpec, weights: Mapping[str, Tensor]) -> Transformer:
    """Build the model of a spec. Its parameters are the tensors in `weights`, made contiguous."""
    model = build(spec, device="meta")
    state = {name: tensor.contiguous() for name, tensor in weights.items()}
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True)


def read_hugging_face(
    options: Mapping[str, Any], tensors: Mapping[str, Tensor], *, allow_unknown_keys: bool = False
) -> tuple[TransformerSpec, LazyTensors]:
    """Return the spec and the `state_dict` of the model that a `config.json` describes.

    Published checkpoints often have one head more than the class in their config
    (`bert-base-uncased` has a next-sentence head). Checkpoints without heads often name a class
    with a head. If the tensors do not fit the class in the config, the first class of the family
    that fits is used. With `allow_unknown_keys`, an option that `transformers` reads for this
    family but Trivium does not read causes a warning, not an error.

    A tensor of the `state_dict` is taken from those of the file when it is looked up. It may be a
    view that is not contiguous. Its values are checked then: infinity or NaN, and tied weights that
    differ, raise CheckpointError.

    Raises:
        CheckpointError: a model type, class or option that is not supported, or a tensor that is
            missing, unknown or not of the shape that the config describes.
    """
    family = family_of(options, tensors.keys())
    on_meta = family.prepare_tensors({name: each.to("meta") for name, each in tensors.items()})
    stored = family.prepare_tensors(tensors), {name: each.shape for name, each in on_meta.items()}
    errors: list[TriviumError] = []
    for architecture in _candidate_classes(family, options):
        try:
            return _read_as_class(family, architecture, options, *stored, allow_unknown_keys)
        except TriviumError as error:
            errors.append(error)
    raise CheckpointError(str(errors[0])) from None


def to_hugging_face(
    model: Transformer, model_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert a model to the options of a `config.json` and tensors with Hugging Face names.

    `model_type` names the family to prefer, as in `to_hf_config`.

    Raises:
        SpecError: no family can express the model; the message says why.
    """
    config = to_hf_config(model.spec, model_type)
    state = {name: weight.detach() for name, weight in model.state_dict().items()}
    weights = weight_map(config.family, config.architecture, model.spec, state.keys())
    return config.options, to_hf(config.family, weights, state)


def to_hf_config(spec: TransformerSpec, model_type: str | None = None) -> HFConfig:
    """Return the config of the first family that can express a spec.

    `model_type` names the family that is tried first, such as the family of the imported model.

    Raises:
        SpecError: no family can express the spec; the message says why.
    """
    if model_type in FAMILIES:
        config = spec_to_config(FAMILIES[model_type], spec)
        if not config.differences:
            return config
    nearest = nearest_config(spec)
    if nearest.differences:
        if {head.kind for head in spec.heads} == {"replaced-token"}:
            body = nearest_config(spec.replace(heads=()))
            if not body.differences:
                raise SpecError(
                    f"{body.family.model_type} of Hugging Face has no head for replaced tokens, "
                    "which this model was pretrained with: fine-tune it on a task first, and "
                    "export that."
                )
        raise SpecError(
            "no Hugging Face family has all parts of this model, so it cannot be exported. The "
            f"nearest is {nearest.family.model_type}, which does not have: "
            f"{nearest.differences[0]}. Families: {', '.join(FAMILIES)}."
        )
    return nearest


def nearest_config(spec: TransformerSpec) -> HFConfig:
    """Return the config of the Hugging Face family that is closest to a spec."""
    configs = (spec_to_config(family, spec) for family in FAMILIES.values())
    return min(configs, key=lambda each: each.rank)


def is_expressible(spec: Spec) -> bool:
    """Return whether a Hugging Face family can express a spec, so that it can be exported."""
    return isinstance(spec, TransformerSpec) and not nearest_config(spec).differences


def exported_spec(spec: TransformerSpec) -> TransformerSpec:
    """Return the spec without the heads that no Hugging Face class has.

    These are an LM head next to a decoder's classifier or tagger, the MLM head of an enhanced mask
    decoder, and `VectorHead`, which belongs to the files of `sentence-transformers`.
    """
    spec = spec.replace(heads=tuple(head for head in spec.heads if head.kind != "vector"))
    heads = tuple(head for head in spec.heads if head.kind in ("classifier", "tagger"))
    if spec.family != "decoder-only" or not heads:
        heads = tuple(
            head for head in spec.heads if head.kind != "mlm" or not spec.mask_decoder_positions
        )
    return spec.replace(heads=heads)


def hf_weight_map(spec: TransformerSpec, model_type: str | None = None) -> list[HFWeight]:
    """Return the Hugging Face names and layouts of the weights of a model with this spec.

    `model_type` names the family to prefer, as in `to_hf_config`. Raises SpecError as
    `to_hugging_face` does.
    """
    config, names = to_hf_config(spec, model_type), build(spec, device="meta").state_dict().keys()
    return weight_map(config.family, config.architecture, spec, names)


def family_of(options: Mapping[str, Any], names: Collection[str] = ()) -> Family:
    """Return the family named by `model_type` in a config or, if it is missing, `architectures`.

    If the config has neither, the family is the one whose `model_type` is the first part of some
    tensor name in `names`.

    Raises:
        CheckpointError: a family that is not supported.
    """
    kind, classes = options.get("model_type"), options.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        shown = shorten(repr(classes), 100)
        raise CheckpointError(f'config.json: "architectures" is {shown}, not a list of names.')
    for family in FAMILIES.values():
        named = kind is None and any(name in family.architectures for name in classes)
        if kind == family.model_type or named:
            return family
    prefixes = {name.partition(".")[0] for name in names}
    for family in FAMILIES.values():
        named = family.model_type in prefixes and family.base == f"{family.model_type}."
        if named and kind is None and not classes:
            return family
    raise CheckpointError(
        f'config.json: "model_type" is {kind!r}, which is not supported; '
        f"supported: {', '.join(FAMILIES)}."
    )


def _candidate_classes(family: Family, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the class named by the config, then the family's classes with other heads."""
    first = (options.get("architectures") or [next(iter(family.architectures))])[0]
    if first not in family.architectures:
        raise CheckpointError(
            f'config.json: "architectures" is {first!r}, which is not supported for '
            f"{family.model_type}; supported: {', '.join(family.architectures)}."
        )
    yield first
    for name, architecture in family.architectures.items():
        if architecture.heads != family.architectures[first].heads:
            yield name


def _read_as_class(
    family: Family,
    architecture: str,
    options: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    stored_shapes: Mapping[str, Size],
    allow_unknown: bool,
) -> tuple[TransformerSpec, LazyTensors]:
    """Return the spec and the `state_dict` of the model, read as one class of `transformers`."""
    base = missing_prefix(family, architecture, tensors.keys())
    # A tensor of zeros that a class always saves does not show that the model uses it.
    zeros = {
        name for name in family.must_be_zero if name in tensors and _is_zero_or_meta(tensors[name])
    }
    names = {base + name for name in tensors.keys() - zeros}
    spec = read_spec(family, architecture, options, names, allow_unknown=allow_unknown)
    shapes = {name: each.shape for name, each in build(spec, device="meta").state_dict().items()}
    weights = weight_map(family, architecture, spec, shapes.keys(), reading=True)
    return spec, to_state_dict(family, weights, tensors, stored_shapes, shapes, base=base)


def _is_zero_or_meta(tensor: Tensor) -> bool:
    """Return whether all values of a tensor are 0; True on the meta device, which has no values."""
    return tensor.is_meta or not tensor.any()
