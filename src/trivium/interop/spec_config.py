"""`config.json` <-> `ModelSpec`, both ways by a family's tables.

Whether a family can express a spec needs no rules of its own: the spec is written as a config, read
back, and every field that comes back different is one that the family cannot say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.errors import CheckpointError, SpecError, TriviumError
from trivium.interop.family import Family, Option, SpecTree
from trivium.interop.hf_config import ConfigReader
from trivium.spec import Attention, ModelSpec, Normal, Stack

_LABELLED = ("classifier", "tagger")


def read_spec(
    family: Family, architecture: str, options: Mapping[str, Any], weights: Collection[str]
) -> ModelSpec:
    """The spec that a config describes.

    Args:
        family: of the config's `model_type`.
        architecture: one of the family's classes.
        options: the content of `config.json`.
        weights: names of the tensors in the file, with the base prefix.

    Raises:
        CheckpointError: an option that is missing, or that no table has a place for.
    """
    config = ConfigReader(options, weights)
    tree = SpecTree(family.stacks_of(architecture), _heads(family, architecture, weights))
    for path, value in family.fixed.items():
        tree.set(path, value)
    for name, option in family.options.items():
        _read_option(config, tree, name, option)
    for kind in _LABELLED:
        tree.set(f"heads.{kind}.num_labels", config.num_labels or family.num_labels)
    for path, value in family.architectures[architecture].fixed.items():
        tree.set(path, value)
    for name, value in family.only.items():
        config.only(name, value)
    config.ignore(*family.ignored.split())
    try:
        for hook in family.hooks:
            hook.read(config, tree)
        config.finish()
        return simplify(tree.build())
    except (SpecError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from None


@dataclass(frozen=True)
class HFConfig:
    """A spec as the config of one class.

    Args:
        family: of the class.
        architecture: the class.
        options: the content of `config.json`; empty where none can be written.
        differences: what the class cannot express of the spec.
    """

    family: Family
    architecture: str
    options: dict[str, Any]
    differences: tuple[str, ...]

    @property
    def distance(self) -> int:
        """How far the class is from the spec; without a config, farther than any with one."""
        if self.options:
            return len(self.differences)
        return 1_000 if self.architecture else 10_000


def write_config(family: Family, spec: ModelSpec) -> HFConfig:
    """The config of the family's class that has the heads of a spec, the closest if several do."""
    kinds = {head.kind for head in spec.heads}
    stacks = tuple(slot for slot in ("encoder", "decoder") if getattr(spec, slot))
    nearest = HFConfig(family, "", {}, ("this combination of stacks and heads",))
    for name, architecture in family.architectures.items():
        heads = {*architecture.heads}
        has_heads = heads <= kinds and kinds - heads <= {*family.optional_heads}
        if family.stacks_of(name) == stacks and has_heads:
            config = _write_as(family, name, spec)
            nearest = min(nearest, config, key=lambda each: each.distance)
    return nearest


def simplify(spec: ModelSpec) -> ModelSpec:
    """The same function of the input, without fields whose value follows from others."""
    stacks = {"encoder": spec.encoder, "decoder": spec.decoder}
    return spec.replace(**{slot: _simple_stack(stack) for slot, stack in stacks.items() if stack})


def _heads(family: Family, architecture: str, weights: Collection[str]) -> tuple[str, ...]:
    """The heads of a class, and optional ones whose weights the file has and no other head uses."""
    kinds = family.architectures[architecture].heads
    used = {hf for kind in kinds for hf in family.head_weights(architecture, kind)}
    for kind in family.optional_heads:
        for hf in family.head_weights(architecture, kind):
            if hf not in used and f"{hf}.weight" in weights:
                kinds += (kind,)
    return kinds


def _write_as(family: Family, architecture: str, spec: ModelSpec) -> HFConfig:
    """Write and read back: what differs cannot be expressed."""
    try:
        options = _options(family, architecture, spec)
        weights = _telling_weights(family, architecture, spec)
        again = read_spec(family, architecture, options, weights)
    except TriviumError as error:
        return HFConfig(family, architecture, {}, (str(error).rstrip("."),))
    differences = _differences(_comparable(spec), _comparable(again))
    return HFConfig(family, architecture, options, tuple(differences))


def _read_option(config: ConfigReader, tree: SpecTree, name: str, option: Option) -> None:
    if option.write_only:
        config.ignore(name)
        return
    default = option.default_in(config) if config.get(name) is None else None
    if option.values is not None:
        value = config.choose(name, option.values, default)
    else:
        value = config.take(name, default)
    if isinstance(value, list | dict) or (isinstance(value, str) and not option.values):
        raise config.unsupported(name, "a number")
    for path in option.paths:
        tree.set(path, value)


def _options(family: Family, architecture: str, spec: ModelSpec) -> dict[str, Any]:
    config: dict[str, Any] = {"model_type": family.model_type, "architectures": [architecture]}
    for name, option in family.options.items():
        for path in option.paths:
            if _has_slot(spec, path):
                value = _field(family, spec, path)
                config[name] = _write_option(family, config, option, path, value)
                break
    for head in spec.heads:
        if head.kind in _LABELLED:
            labels = {str(i): f"LABEL_{i}" for i in range(head.num_labels)}  # type: ignore[union-attr]
            config["id2label"] = labels
            config["label2id"] = {label: int(i) for i, label in labels.items()}
    for hook in family.hooks:
        hook.write(spec, config)
    return config


def _write_option(
    family: Family, config: dict[str, Any], option: Option, path: str, value: Any
) -> Any:
    if option.values is not None:
        for hf, local in option.values.items():
            if local == value:
                return hf
        raise SpecError(f"{path} = {value!r}, which {family.model_type} does not have.")
    return option.default_in(ConfigReader(config)) if value is None else value


def _has_slot(spec: ModelSpec, path: str) -> bool:
    slot, _, rest = path.partition(".")
    if slot == "heads":
        return any(head.kind == rest.split(".")[0] for head in spec.heads)
    return slot not in ("encoder", "decoder") or getattr(spec, slot) is not None


def _field(family: Family, spec: ModelSpec, path: str) -> Any:
    """The value at a dotted path; of a pattern of attentions, the first one's."""
    node: Any = spec
    for name in path.split("."):
        if isinstance(node, tuple):
            node = node[0]
        if name == "heads":
            node = {head.kind: head for head in spec.heads}
        elif isinstance(node, dict):
            node = node[name]
        elif hasattr(node, name):
            node = getattr(node, name)
        else:
            raise SpecError(f"it has no {path}, which {family.model_type} needs.")
    return node


def _telling_weights(family: Family, architecture: str, spec: ModelSpec) -> set[str]:
    """The names that configs are read by: of optional heads and of heads' biases."""
    names = set()
    for head in spec.heads:
        for hf, local in family.head_weights(architecture, head.kind).items():
            if head.kind in family.optional_heads:
                names.add(f"{hf}.weight")
            elif local.endswith(".bias") and getattr(head, "bias", False):
                names.add(hf)
    return names


def _simple_stack(stack: Stack) -> Stack:
    attentions = [_simple_attention(attention) for attention in stack.attentions]
    period = next(
        n
        for n in range(1, len(attentions) + 1)
        if all(a == attentions[i % n] for i, a in enumerate(attentions))
    )
    pattern = attentions[0] if period == 1 else tuple(attentions[:period])
    return stack.replace(attention=pattern)


def _simple_attention(attention: Attention) -> Attention:
    usual_scale = attention.scale == attention.head_dim**-0.5
    return attention.replace(
        num_kv_heads=None if attention.kv_heads == attention.num_heads else attention.kv_heads,
        output_bias=None if attention.has_output_bias == attention.bias else attention.output_bias,
        scale=None if usual_scale else attention.scale,
    )


def _comparable(spec: ModelSpec) -> dict[str, Any]:
    """All that logits depend on, by dotted path."""
    plain = simplify(spec).with_dropout(0.0).replace(initialization=Normal())
    tree = plain.to_dict()
    tree["heads"] = {head["kind"]: head for head in tree["heads"]}
    return dict(_leaves(tree, ""))


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        yield path, node
        return
    for name, value in node.items():
        yield from _leaves(value, f"{path}.{name}" if path else str(name))


def _differences(spec: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    for path in sorted(spec.keys() | again.keys()):
        if spec.get(path) != again.get(path):
            yield f"{path} = {spec.get(path)!r}"
