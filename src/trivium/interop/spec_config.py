"""Convert a `config.json` to a `TransformerSpec` and back, using a family's mapping of options.

No separate rules decide whether a family can express a spec. Instead, the spec is written as a
config and read back: the family cannot express the fields whose values differ.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.config import flatten_keys
from trivium.errors import CheckpointError, SpecError, TriviumError
from trivium.interop.family import Family, Option, SpecTree
from trivium.interop.hf_config import ConfigReader
from trivium.models.heads.text import ClassifierHead
from trivium.models.heads.tokens import TaggerHead
from trivium.models.initialization import Normal
from trivium.models.stack import Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import Layer
from trivium.nn.mixers import Mixer
from trivium.nn.mixers.attention import Attention


def read_spec(
    family: Family,
    architecture: str,
    options: Mapping[str, Any],
    weights: Collection[str],
    *,
    allow_unknown: bool = False,
) -> TransformerSpec:
    """Return the spec that the options of a `config.json` describe.

    Args:
        family: the family of the config's `model_type`.
        architecture: one of the family's classes.
        options: the content of `config.json`.
        weights: names of the tensors in the file, with the base prefix.
        allow_unknown: only warn about options that `transformers` reads and Trivium does not.

    Raises:
        CheckpointError: an option that is missing or not supported, or that `transformers` reads
            and Trivium does not.
    """
    config = ConfigReader(family.rename_options(options), weights)
    tree = SpecTree(family.stacks_of(architecture), _heads_in_file(family, architecture, weights))
    for path, value in family.fixed.items():
        tree.set(path, value)
    for name, option in family.options.items():
        _apply_option(config, tree, name, option)
    for kind in ("classifier", "tagger"):
        tree.set(f"heads.{kind}.num_labels", config.num_labels or family.num_labels)
    for path, value in family.architectures[architecture].fixed.items():
        tree.set(path, value)
    for name, value in family.expected.items():
        config.expect(name, value)
    config.ignore(*family.ignored.split())
    try:
        for hook in family.hooks:
            hook.read(config, tree)
        config.finish(allow_unknown=allow_unknown)
        return simplify(tree.build())
    except CheckpointError:
        raise
    except (SpecError, ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from None


@dataclass(frozen=True)
class HFConfig:
    """The config of one `transformers` class that comes closest to a spec.

    Args:
        family: the family of the class.
        architecture: the name of the class, or "" if no class has the heads and stacks of the spec.
        options: the content of `config.json`.
        differences: the parts of the spec that the class cannot express.
        rank: the distance to the spec; smaller is closer. First, 0 for a config that can be read
            back, 1 for one that cannot, 2 or 3 if heads or stacks are missing; then the number of
            differences.
    """

    family: Family
    architecture: str
    options: dict[str, Any]
    differences: tuple[str, ...]
    rank: tuple[int, int]


def spec_to_config(family: Family, spec: TransformerSpec) -> HFConfig:
    """Convert a spec to a config of the family, for the closest of its `transformers` classes.

    If no class has the heads and stacks of the spec, the result has an empty `architecture`.
    """
    kinds = {head.kind for head in spec.heads}
    stacks = tuple(slot for slot in ("encoder", "decoder") if getattr(spec, slot))
    configs = []
    for name, architecture in family.architectures.items():
        heads = {*architecture.heads}
        has_heads = heads <= kinds and kinds - heads <= {*family.optional_heads}
        if family.stacks_of(name) == stacks and has_heads:
            configs.append(_config_for_class(family, name, spec))
    has_stacks = any(family.stacks_of(name) == stacks for name in family.architectures)
    lacks = f"the heads {', '.join(sorted(kinds))} in one model" if has_stacks else "these stacks"
    none = HFConfig(family, "", {}, (lacks,), (3 - has_stacks, 0))
    return min(configs, key=lambda each: each.rank, default=none)


def simplify(spec: TransformerSpec) -> TransformerSpec:
    """Return an equivalent spec without redundant field values and repeated layers."""
    stacks = {"encoder": spec.encoder, "decoder": spec.decoder}
    return spec.replace(**{slot: _simplify_stack(stack) for slot, stack in stacks.items() if stack})


def _heads_in_file(family: Family, architecture: str, weights: Collection[str]) -> tuple[str, ...]:
    """Return the kinds of heads in a file: those of the class, then optional heads.

    An optional head is in the file if the file has a weight of this head that is not also a weight
    of one of the class's heads.
    """
    kinds = family.architectures[architecture].heads
    used = {hf for kind in kinds for hf in family.head_weight_names(architecture, kind)}
    for kind in family.optional_heads:
        for hf in family.head_weight_names(architecture, kind):
            if hf not in used and f"{hf}.weight" in weights:
                kinds += (kind,)
    return kinds


def _config_for_class(family: Family, architecture: str, spec: TransformerSpec) -> HFConfig:
    """Convert a spec to a config for one `transformers` class.

    `HFConfig.differences` lists the spec fields that differ when the config is read back.
    """
    options, differences = _write_options(family, architecture, spec)
    weights, is_unreadable = _optional_weight_names(family, architecture, spec), False
    try:
        with warnings.catch_warnings(action="ignore"):  # an option that is not read differs
            again = _comparable_fields(read_spec(family, architecture, options, weights))
    except TriviumError as error:
        differences.append(str(error).rstrip("."))
        is_unreadable = True
    else:
        own = _comparable_fields(simplify(spec))
        paths = sorted(own.keys() | again.keys(), key=_difference_sort_key)
        differences += [
            _format_difference(path, own) for path in paths if own.get(path) != again.get(path)
        ]
    unique = tuple(dict.fromkeys(differences))
    return HFConfig(family, architecture, options, unique, (int(is_unreadable), len(unique)))


def _difference_sort_key(path: str) -> tuple[bool, int, str]:
    """Return the sort key of a field in which two specs differ.

    Differences in the `kind` of a part come first, then those in other fields; in both groups,
    outer parts come before the parts nested in them.
    """
    return not path.endswith(".kind"), path.count("."), path


def _format_difference(path: str, own: Mapping[str, Any]) -> str:
    """Format a spec field that a config cannot express, for an error message.

    Returns "field = value" or, if the values differ between layers, a phrase that says so.
    """
    part, layer, field = re.fullmatch(r"(.*?)(?:\.(\d+)\.(.*))?", path).groups()  # type: ignore
    if layer is not None:
        layers = {key.removeprefix(f"{part}.").partition(".")[0] for key in own if part in key}
        values = {repr(own.get(f"{part}.{number}.{field}")) for number in layers}
        path = f"{part}.{field}"
        if len(values) > 1:
            return f"{part}.{field.partition('.')[0]} that differs between layers"
        return f"{path.removesuffix('.kind') if values == {'None'} else path} = {values.pop()}"
    path = path if path in own else path.removesuffix(".kind")
    return f"{path} = {own.get(path)!r}"


def _apply_option(config: ConfigReader, tree: SpecTree, name: str, option: Option) -> None:
    """Read an option of the config, and set the spec fields that the option determines."""
    if option.write_only:
        config.ignore(name)
        return
    default = option.resolve_default(config) if config.get(name) is None else None
    if option.values is not None:
        value = config.translate(name, option.values, default)
    else:
        value = config.require(name, default)
    if isinstance(value, list | dict) or (isinstance(value, str) and not option.values):
        raise config.unsupported(name, expected="a number, true or false")
    for path in option.paths:
        tree.set(path, value)


def _write_options(
    family: Family, architecture: str, spec: TransformerSpec
) -> tuple[dict[str, Any], list[str]]:
    """Return the content of `config.json`, and error messages.

    There is a message for each option whose spec fields have a value that the option cannot have.
    """
    config: dict[str, Any] = {"model_type": family.model_type, "architectures": [architecture]}
    differences: list[str] = []
    for name, option in family.options.items():
        try:
            config[name] = _write_option({**config, name: None}, option, spec)
        except TriviumError as error:
            differences.append(str(error))
    for head in spec.heads:
        if isinstance(head, ClassifierHead | TaggerHead):
            config["id2label"] = {str(i): f"LABEL_{i}" for i in range(head.num_labels)}
            config["label2id"] = {label: int(i) for i, label in config["id2label"].items()}
    for hook in family.hooks:
        try:
            hook.write(spec, config)
        except TriviumError as error:
            differences.append(str(error))
    return config, differences


def _write_option(config: dict[str, Any], option: Option, spec: TransformerSpec) -> Any:
    """Return the value that export writes for an option.

    This is the value of the first of its fields that the spec sets, or the default if the spec sets
    none of them. Raises SpecError if the option cannot have this value.
    """
    value = next(
        (v for v in (_get_field(spec, path) for path in option.paths) if v is not None), None
    )
    if option.at_least is not None and value is not None and value < option.at_least:
        raise SpecError(f"{option.paths[0]} = {value!r}")
    for hf, local in (option.values or {}).items():
        if local == value:
            return hf
    if value is None:
        default = option.resolve_default(ConfigReader(config))
        if default is None and not option.write_only:
            raise SpecError(f"{option.paths[0]} = None")
        return default
    if option.values is not None:
        raise SpecError(f"{option.paths[0]} = {value!r}")
    return value


def _get_field(spec: TransformerSpec, path: str) -> Any:
    """Return the value of the spec field at a dotted path, or None.

    If the path goes through a list of layers, this is the value in the first layer.
    """
    node: Any = spec
    for name in path.split("."):
        if isinstance(node, tuple):
            node = node[0]
        if name == "heads":
            node = {head.kind: head for head in spec.heads}
        elif isinstance(node, dict):
            node = node.get(name)
        else:
            node = getattr(node, name, None)
    return node


def _optional_weight_names(family: Family, architecture: str, spec: TransformerSpec) -> set[str]:
    """Return the names of weights that exported files contain and that `read_spec` looks for.

    From these names, `read_spec` detects optional heads, output matrices that are not tied to the
    token embeddings, and biases of heads.
    """
    names = set()
    for head in spec.heads:
        for hf, local in family.head_weight_names(architecture, head.kind).items():
            untied = not local.removeprefix(f"heads.{head.kind}") and not getattr(
                head, "tied", True
            )
            if head.kind in family.optional_heads or untied:
                names.add(f"{hf}.weight")
            elif local.endswith(".bias") and getattr(head, "bias", False):
                names.add(hf)
    return names


def _simplify_stack(stack: Stack) -> Stack:
    """Return an equivalent stack that lists only the shortest repeating sequence of layers."""
    first, layers = stack.first_layers, [*stack.map_layers(_simplify_layer).every_layer]
    if stack.num_layer_groups:
        return stack.replace(layers=layers[0])
    rest = layers[len(first) :] or layers[-1:]
    periods = range(1, len(rest) + 1)
    period = next(n for n in periods if rest == (rest[:n] * len(rest))[: len(rest)])
    return stack.replace(first_layers=tuple(layers[: len(first)]), layers=tuple(rest[:period]))


def _simplify_layer(layer: Layer) -> Layer:
    """Return an equivalent layer, in whose mixer fields with default values are unset."""
    return layer.replace(mixer=_simplify_mixer(layer.mixer))


def _simplify_mixer(attention: Mixer) -> Mixer:
    """Return an equivalent mixer; fields of attention that have their default values are unset."""
    if not isinstance(attention, Attention):
        return attention
    usual_scale = attention.score_scale == attention.replace(scale=None).score_scale
    return attention.replace(
        num_kv_heads=None if attention.kv_heads == attention.num_heads else attention.kv_heads,
        key_bias=None if attention.has_key_bias == attention.bias else attention.key_bias,
        output_bias=None if attention.has_output_bias == attention.bias else attention.output_bias,
        scale=None if usual_scale else attention.scale,
    )


def _comparable_fields(spec: TransformerSpec) -> dict[str, Any]:
    """Return dotted path -> value for all fields of a simplified spec that affect the logits."""
    spec = spec.with_dropout(0.0).replace(initialization=Normal())
    tree = spec.to_dict()
    for slot in ("encoder", "decoder"):
        stack: Stack | None = getattr(spec, slot)
        if stack is not None:
            layers = [each.model_dump(mode="json", exclude_none=True) for each in stack.every_layer]
            tree[slot]["layers"] = {str(number): layer for number, layer in enumerate(layers)}
            del tree[slot]["first_layers"]
    return flatten_keys({**tree, "heads": {head["kind"]: head for head in tree["heads"]}})
