"""What families of decoders share: classes with their heads, rows of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop.config import THEIR_ACTIVATIONS, Config, labels
from trivium.interop.exactness import architecture_of
from trivium.interop.family import Row, fused_rows, rows


@dataclass(frozen=True)
class DecoderHeads:
    """The classes of a family of decoders, one head each, and the names of their weights.

    A classifier of theirs reads the last token that is not padding: ours the last real one.

    Args:
        family: what messages call it.
        classes: kind of head ("none": the body alone) -> class of theirs.
        tagger: what stands before the names of a tagger's weights.
        tied: whether the vocabulary matrix is the token table where the config does not say.
    """

    family: str
    classes: Mapping[str, str]
    tagger: str = "classifier"
    tied: bool = True

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every class of theirs."""
        return tuple(self.classes.values())

    def read(self, config: Config, architecture: str) -> tuple[spec.Head, ...]:
        """The heads of one class."""
        tied = bool(config.take("tie_word_embeddings", self.tied))
        return self._classes(tied, config.num_labels)[architecture]

    def write(self, model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
        """The class with the heads of a model, and what its config says of them.

        Raises:
            SpecError: theirs has no such head, or none with these options.
        """
        tied, count = self.tied, 2
        config: dict[str, Any] = {}
        for head in model.heads:
            if isinstance(head, spec.LMHead):
                tied = head.tied
            if isinstance(head, spec.ClassifierHead | spec.TaggerHead):
                count = head.num_labels
                config |= labels(count)
        architecture = architecture_of(model, self._classes(tied, count), self.family)
        return architecture, {"tie_word_embeddings": tied, **config}

    def rows(self, model: spec.ModelSpec) -> list[Row]:
        """The names of the weights of a model's heads."""
        found: list[Row] = []
        for head in model.heads:
            match head:
                case spec.LMHead(tied=tied):
                    found += [] if tied else [Row("lm_head.weight", ("heads.lm.weight",))]
                case spec.ClassifierHead(bias=bias):
                    found += rows("heads.classifier.classifier", "score", bias=bias)
                case spec.TaggerHead():
                    found += rows("heads.tagger.classifier", self.tagger)
                case spec.SpanHead():
                    found += rows("heads.span.classifier", "qa_outputs")
                case _:
                    raise SpecError(f"{self.family} has no {head.kind} head.")
        return found

    def _classes(self, tied: bool, count: int) -> dict[str, tuple[spec.Head, ...]]:
        classifier = spec.ClassifierHead(num_labels=count, pooling="last", bias=False)
        heads: dict[str, tuple[spec.Head, ...]] = {
            "none": (),
            "lm": (spec.LMHead(tied=tied),),
            "classifier": (classifier,),
            "tagger": (spec.TaggerHead(num_labels=count),),
            "span": (spec.SpanHead(),),
        }
        return {name: heads[kind] for kind, name in self.classes.items()}


def layer_rows(
    stack: spec.Stack,
    theirs: str,
    names: Mapping[str, tuple[str, ...]],
    *,
    transposed: bool = False,
) -> list[Row]:
    """The rows of all layers of a decoder.

    Args:
        stack: the decoder, which says what has a bias.
        theirs: what stands before the number of a layer.
        names: theirs inside a layer -> the parts of our block it holds.
        transposed: whether theirs has the matrices of linear layers as [in, out].
    """
    found: list[Row] = []
    for layer in range(stack.num_layers):
        for name, parts in names.items():
            ours = tuple(f"decoder.layers.{layer}.{part}" for part in parts)
            turned = transposed and not parts[0].endswith("norm")
            bias = _has_bias(stack, parts[0])
            found += fused_rows(ours, f"{theirs}.{layer}.{name}", bias=bias, transposed=turned)
    return found


def _has_bias(stack: spec.Stack, part: str) -> bool:
    attention = stack.attention_of(0)
    if part == "attention.output":
        return attention.has_output_bias
    if part.startswith("attention."):
        return attention.bias
    if part.startswith("feed_forward."):
        return stack.feed_forward.bias
    return isinstance(stack.norm, spec.LayerNorm) and stack.norm.bias


def head_dim_of(width: int, num_heads: int) -> int:
    """Width of a head where all heads make up the model's. Raises CheckpointError otherwise."""
    if width % num_heads:
        raise CheckpointError(
            f"config.json: a width of {width} is not a multiple of {num_heads} heads."
        )
    return width // num_heads


def decoder_of(model: spec.ModelSpec, family: str) -> spec.Stack:
    """The decoder of a model that is nothing else. Raises SpecError for other models."""
    if model.decoder is None or model.encoder is not None:
        raise SpecError(f"{family} is decoder-only, but this model is {model.family}.")
    return model.decoder


def learned_of(model: spec.ModelSpec, family: str) -> spec.Learned:
    """The learned positions of a model. Raises SpecError for others."""
    positions = model.embedding.positions
    if not isinstance(positions, spec.Learned):
        raise SpecError(f"{family} has learned positions, which this model has not.")
    return positions


def their_activation(feed_forward: spec.FeedForward, family: str) -> str:
    """Their name of an activation. Raises SpecError for one they have not."""
    name = THEIR_ACTIVATIONS.get(str(feed_forward.activation))
    if name is None:
        raise SpecError(f"{family} has no activation {feed_forward.activation!r}.")
    return name
