"""Which class of theirs a spec is, and whether its config says everything that the spec says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from trivium import spec
from trivium.errors import SpecError, TriviumError
from trivium.interop.config import Config
from trivium.interop.family import Row


def architecture_of(
    model: spec.ModelSpec, classes: Mapping[str, tuple[spec.Head, ...]], family: str
) -> str:
    """The class of theirs with exactly the heads of a model."""
    for name, heads in classes.items():
        if heads == model.heads:
            return name
    found = ", ".join(repr(head) for head in model.heads)
    raise SpecError(f"{family} has no {model.family} class with these heads: {found}.")


def plain(model: spec.ModelSpec) -> spec.ModelSpec:
    """The same function of the input, described in the one way there is for it."""
    return model.replace(
        encoder=_plain_stack(model.encoder),
        decoder=_plain_stack(model.decoder),
        heads=tuple(sorted(model.heads, key=lambda head: head.kind)),
        initialization=spec.Normal(),
    )


def survives(
    model: spec.ModelSpec,
    read: Callable[[Config, str, Collection[str]], spec.ModelSpec],
    write: Callable[[spec.ModelSpec], tuple[str, dict[str, Any]]],
    table: Callable[[spec.ModelSpec, str], list[Row]],
    *,
    heads: bool = False,
) -> bool:
    """Whether `model` is the same after a way through their config.

    Dropout and the start of training are left out, which change no answer, and heads unless asked
    for, where `write` refuses those it has no class for.
    """
    whole = model if heads else model.replace(heads=())
    try:
        architecture, options = write(whole)
        names = {row.theirs for row in table(whole, architecture)}
        again = read(Config({"model_type": "this family", **options}), architecture, names)
    except TriviumError:
        return False
    return plain(again if heads else again.replace(heads=())) == plain(whole)


def _plain_stack(stack: spec.Stack | None) -> spec.Stack | None:
    if stack is None:
        return None
    attentions = tuple(map(_plain_attention, stack.attentions))
    attention = attentions[0] if len(set(attentions)) == 1 else attentions
    return stack.replace(attention=attention, dropout=0.0)


def _plain_attention(attention: spec.Attention) -> spec.Attention:
    scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
    return attention.replace(
        num_kv_heads=attention.kv_heads, output_bias=attention.has_output_bias, scale=scale
    )
