"""Change the width, heads and layers of a `TransformerSpec`, and sizes that depend on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from trivium.models.heads.vocabulary import LMHead
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import Layer
from trivium.nn.part import Part

_MULTIPLE = 8  # hidden units are rounded to a multiple of this number


def resize_spec(
    spec: TransformerSpec, d_model: int, num_heads: Mapping[str, int], num_layers: Mapping[str, int]
) -> TransformerSpec:
    """Return a copy of the spec with another width, number of heads or number of layers.

    Sizes that depend on these sizes are recomputed. The head width changes if all heads together
    are as wide as the model. The number of key-value heads stays in proportion to the number of
    heads, and hidden units to the width. A scale that is the square root of a width, or its
    inverse, follows that width. A residual multiplier (2 L)^-0.5 follows the number L of layers
    (ChatGLM). If every layer has a seed (BigBird), the layers get the seeds 0, 1, 2, ...

    Args:
        spec: the spec to resize.
        d_model: the new width.
        num_heads: the new number of attention heads by stack ("encoder", "decoder"); stacks that
            are not named keep theirs.
        num_layers: the new number of layers by stack, in the same form.
    """
    old, changes = spec.d_model, dict[str, Any]()

    def resize_layer(layer: Layer, heads: int | None) -> Layer:
        """Return a copy of the layer spec for the new width and number of heads."""
        mixer, network = layer.mixer, layer.feed_forward
        mixer = mixer.replace(**_heads(mixer, old, d_model, heads), **_units(mixer, old, d_model))
        if network is not None:
            network = network.replace(**_units(network, old, d_model))
        return layer.replace(mixer=mixer, feed_forward=network)

    for slot in ("encoder", "decoder"):
        stack = getattr(spec, slot)
        if stack is not None:
            heads = num_heads.get(slot)
            stack = stack.map_layers(lambda layer, heads=heads: resize_layer(layer, heads))
            count = num_layers.get(slot, stack.num_layers)
            if all(hasattr(mixer, "seed") for mixer in stack.mixers):
                mixers = (stack.mixers[0].replace(seed=number) for number in range(count))
                stack = stack.with_layers(mixer=tuple(mixers))
            rescale = partial(_rescale_residual, old=stack.num_layers, new=count)
            changes[slot] = stack.map_layers(rescale).replace(num_layers=count)
    if spec.embedding.scale == old**0.5:
        changes["embedding"] = spec.embedding.replace(scale=d_model**0.5)
    changes["heads"] = tuple(
        head.replace(scale=d_model**-0.5)
        if isinstance(head, LMHead) and head.scale == old**-0.5
        else head
        for head in spec.heads
    )
    return spec.replace(d_model=d_model, **changes)


def _rescale_residual(layer: Layer, old: int, new: int) -> Layer:
    """Return a copy of a layer spec for a stack of `new` instead of `old` layers.

    A residual multiplier (2 L)^-0.5 with post-norm changes, and with it the epsilon of the norm, so
    that the norm of sqrt(2 L) x + f(x) keeps its epsilon.
    """
    eps = getattr(layer.norm, "eps", None)
    if eps is None or layer.norm_placement != "post":
        return layer
    if layer.residual_multiplier != (2 * old) ** -0.5 or old == new:
        return layer
    norm = layer.norm.replace(eps=eps * old / new)
    return layer.replace(norm=norm, residual_multiplier=(2 * new) ** -0.5)


def _heads(mixer: Any, old: int, d_model: int, num_heads: int | None) -> dict[str, Any]:
    """Return new values of the fields of a mixer spec that depend on width or number of heads.

    `old` is the old width of the model, `num_heads` the new number of heads; None: unchanged.
    """
    before, width = getattr(mixer, "num_heads", None), getattr(mixer, "head_dim", None)
    if before is None or width is None:
        return {}
    heads = num_heads or before
    fields: dict[str, Any] = {"num_heads": heads}
    if before * width == old and d_model % heads == 0:
        fields["head_dim"] = d_model // heads
    if groups := getattr(mixer, "num_kv_heads", None):
        most = max(1, round(groups * heads / before))
        fields["num_kv_heads"] = next(n for n in range(most, 0, -1) if heads % n == 0)
    if getattr(mixer, "scale", None) == width**-0.5:
        fields["scale"] = fields.get("head_dim", width) ** -0.5
    return fields


def _units(part: Part, old: int, d_model: int) -> dict[str, Any]:
    """Return the fields that are proportional to the width, such as `d_ff`, for a new width.

    `old` is the old width of the model. Configurations inside this one are changed, too.
    """
    fields: dict[str, Any] = {}
    for name, value in dict(part).items():
        if name in ("d_ff", "d_inner") and old != d_model:
            exact = value * d_model / old
            rounded = _MULTIPLE * round(exact / _MULTIPLE)
            fields[name] = round(exact) if exact == round(exact) else max(_MULTIPLE, rounded)
        elif name == "dt_rank" and value == math.ceil(old / 16):
            fields[name] = math.ceil(d_model / 16)
        elif isinstance(value, Part) and (inner := _units(value, old, d_model)):
            fields[name] = value.replace(**inner)
    return fields


def changed_keys(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Compare two nested dicts. Yields (dotted key, old value, new value) for each changed key.

    Keys that only `before` has are not compared. `path` is the prefix of all keys.
    """
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from changed_keys(old, value, f"{path}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for one, other in zip(old or (), value):
                yield from changed_keys(one, other, f"{path}{name}.")
        elif old != value:
            yield path + name, old, value
