"""Training a part of a model: embeddings, the body or its lowest layers stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trivium.adapt.lora import LoRALinear
from trivium.adapt.parameters import ParameterCounts, inside, task_heads, train_only
from trivium.errors import SpecError, did_you_mean
from trivium.models import LanguageModule, NGramModel, RecurrentModel, Transformer

_VECTORS = "all-but-norms-and-biases"
_LAYERS = "layers:"
# In a Transformer; in the cells of a recurrent network.
_LAYER_OF = (re.compile(r"(?:en|de)coder\.layers\.(\d+)\."), re.compile(r"_l(\d+)(?:_reverse)?$"))


def freeze(model: LanguageModule, what: str) -> ParameterCounts:
    """Freeze a part of a model in place and train all the rest.

    Args:
        model: one without a LoRA adapter, which says itself what is trained.
        what: "none";
            "embeddings": token vectors, positions, token types and what norms or widens them (and
            so a head whose matrix is that of the token vectors);
            "layers:N": the lowest N layers of every stack, and the embeddings below them;
            "encoder": the encoder and the table it reads, so that what it says stays the same;
            "body": everything but the heads;
            "all-but-norms-and-biases": every matrix but those of the task's heads (BitFit, Zaken et
            al. 2021, with the norms' weights).

    Raises:
        SpecError: a part the model has not, or nothing would be left to train. The model is as it
            was then.
    """
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise SpecError(
            "this model has a LoRA adapter, which freezes the rest: name what is trained beside it "
            "when it is added."
        )
    names = [name for name, _ in model.named_parameters()]
    trained = set(names) - set(_frozen(model, what, names))
    if not trained:
        raise SpecError(
            f'freezing "{what}" leaves nothing of this model to train; allowed: '
            f"{', '.join(_allowed(model))}."
        )
    return train_only(model, trained)


def _frozen(model: LanguageModule, what: str, names: list[str]) -> Iterable[str]:
    if what == "none":
        return ()
    if what == "embeddings":
        return filter(_is_embedding, names)
    if what == "body":
        return (name for name in names if not name.startswith("heads."))
    if what == "encoder" and model.spec.family != "decoder-only":
        return _encoder(model, names)
    if what == _VECTORS:
        heads = task_heads(model)
        return (
            name
            for name, weight in model.named_parameters()
            if weight.ndim > 1 and not inside(name, heads)
        )
    number = what.removeprefix(_LAYERS)
    if what.startswith(_LAYERS) and number.isdecimal() and int(number) in _layer_counts(model):
        blocks = _lowest_blocks(model, int(number))
        return (name for name in names if _is_embedding(name) or _layer(name) in blocks)
    allowed = _allowed(model)
    raise SpecError(
        f'"{what}" is no part of this model that can be frozen; allowed: {", ".join(allowed)}.'
        f"{did_you_mean(what, allowed)}"
    )


def _encoder(model: LanguageModule, names: list[str]) -> Iterable[str]:
    if not isinstance(model, Transformer) or model.decoder is None:
        return (name for name in names if not name.startswith("heads."))
    table = "tokens" if model.source_tokens is None else "source_tokens"
    return (name for name in names if inside(name, ("encoder", table)))


def _is_embedding(name: str) -> bool:
    tables = ("tokens", "source_tokens", "before", "encoder.embedding", "decoder.embedding")
    return inside(name, tables)


def _layer(name: str) -> int | None:
    """The number of the layer that a parameter belongs to; layers that share have one."""
    found = next(filter(None, (pattern.search(name) for pattern in _LAYER_OF)), None)
    return int(found[1]) if found and not name.startswith("heads.") else None


def _lowest_blocks(model: LanguageModule, count: int) -> set[int]:
    if not isinstance(model, Transformer):
        return set(range(count))
    return {stack.spec.block_of(i) for stack in model.stacks for i in range(count)}


def _layer_counts(model: LanguageModule) -> list[int]:
    """Every N of "layers:N": as many as each stack has, cut only where layers share nothing."""
    match model:
        case NGramModel():
            return []
        case RecurrentModel():
            return list(range(1, model.spec.num_layers + 1))
        case Transformer():
            stacks = [stack.spec for stack in model.stacks]
            shallowest = min(stack.num_layers for stack in stacks)
            return [
                count
                for count in range(1, shallowest + 1)
                if all(
                    count == stack.num_layers or stack.block_of(count) != stack.block_of(count - 1)
                    for stack in stacks
                )
            ]


def _allowed(model: LanguageModule) -> list[str]:
    counts = _layer_counts(model)
    layers = [f"{_LAYERS}{counts[0]}", f"{_LAYERS}{counts[-1]}"] if counts else []
    if len(counts) > 2:
        layers.insert(1, "...")
    encoder = [] if model.spec.family == "decoder-only" else ["encoder"]
    return ["none", "embeddings", *dict.fromkeys(layers), *encoder, "body", _VECTORS]
