"""What a preset is: a spec with its name's paper; and what the specs of many presets share."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from trivium.models.base_model import Spec
from trivium.models.heads import Dense, Head
from trivium.models.heads.vocabulary import LMHead, MLMHead
from trivium.models.initialization import Initialization, Normal
from trivium.models.stack import Embedding, Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.activations import Activation
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import LayerNorm

SCALED = Normal(residual_init="scaled")
"""GPT-2's initialization, which most decoders follow."""

GELU_MLM = MLMHead(dense=Dense(activation="gelu", norm=True))
"""The head of BERT and RoBERTa for masked tokens."""


@dataclass(frozen=True)
class Preset:
    """A named size of the literature.

    Args:
        spec: the model, initialised as published.
        paper: where it was published.
        context: longest training input in tokens; None where no length is published.
        tokens: seen in training, repetitions counted, where published.
        lr: the peak learning rate, where published.
        batch: tokens of a step, where published; the last, where it grows.
        text_bytes: of the text that it was trained on, where published.
        training: the other keys of a recipe that the paper gives, as a nested dict, where it gives
            all that matter; else None.
    """

    spec: Spec
    paper: str
    context: int | None
    tokens: float | None = None
    lr: float | None = None
    batch: float | None = None
    text_bytes: float | None = None
    training: Any = None

    @property
    def recipe(self) -> dict[str, Any]:
        """The keys of a recipe that trains it as published; none where the paper lacks some.

        >>> from trivium.presets import catalogue
        >>> catalogue["llama-7b"].recipe["optimizer"]["lr"], catalogue["bert-base"].recipe
        (0.0003, {})
        """
        if not (self.training and self.lr and self.batch and self.context and self.tokens):
            return {}
        tree: dict[str, Any] = copy.deepcopy(self.training)
        tree["optimizer"]["lr"] = self.lr
        tree["data"] = {"length": self.context}
        tree["train"] = {
            **tree["train"],
            "batch_tokens": int(self.batch),
            "tokens": int(self.tokens),
        }
        return tree


_PLAIN, _TIED = Embedding(), LMHead(tied=True)


def decoder(
    num_layers: int,
    d_model: int,
    *,
    vocab_size: int,
    embedding: Embedding = _PLAIN,
    head: Head = _TIED,
    initialization: Initialization = SCALED,
    **stack: Any,
) -> TransformerSpec:
    """Return a decoder-only model that resembles GPT-2 in everything that is not given.

    `stack` contains the other arguments of `Stack.of_mixers`: the mixer, and those that are unlike
    GPT-2's.
    """
    return TransformerSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=embedding,
        decoder=Stack.of_mixers(
            num_layers=num_layers,
            **{
                "feed_forward": MLP(d_ff=4 * d_model, activation="gelu_tanh"),
                "norm": LayerNorm(),
                "norm_placement": "pre",
                **stack,
            },
        ),
        heads=(head,),
        initialization=initialization,
    )


def encoder(
    num_layers: int,
    d_model: int,
    *,
    vocab_size: int,
    embedding: Embedding,
    heads: tuple[Head, ...],
    activation: Activation = "gelu",
    **stack: Any,
) -> TransformerSpec:
    """Return an encoder-only model that has the post-norm blocks of BERT.

    `stack` contains the other arguments of `Stack.of_mixers`: the mixer, the norm and what is
    unlike BERT's.
    """
    feed_forward = MLP(d_ff=4 * d_model, activation=activation)
    blocks = {"feed_forward": feed_forward, "norm_placement": "post", "dropout": 0.1, **stack}
    return TransformerSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=embedding,
        encoder=Stack.of_mixers(num_layers=num_layers, **blocks),
        heads=heads,
    )


def attention(d_model: int, num_heads: int, **options: Any) -> Attention:
    """Return attention whose heads together are as wide as the model."""
    return Attention(num_heads=num_heads, head_dim=d_model // num_heads, **options)


def swiglu(d_ff: int) -> MLP:
    """Return LLaMA's feed-forward network: gated by SiLU, without biases."""
    return MLP(d_ff=d_ff, activation="silu", gated=True, bias=False)
