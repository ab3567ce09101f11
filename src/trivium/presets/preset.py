"""The class `Preset`, and functions that return the specs of models and layers for presets."""

from __future__ import annotations

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

GPT2_INIT = Normal(residual_init="scaled")
"""GPT-2's initialization, which most decoders follow."""

GELU_MLM = MLMHead(dense=Dense(activation="gelu", norm=True))
"""The MLM head of BERT and RoBERTa."""


@dataclass(frozen=True)
class Preset:
    """A model spec, with the paper of the model and the size of its training.

    Numbers that the paper does not give are None. `presets.published` has the training recipes.

    Args:
        spec: the configuration of the model, with the published initialization.
        paper: the publication of the model.
        context: the maximum length of training sequences in tokens.
        tokens: the number of training tokens. Tokens of repeated epochs are counted again.
        text_bytes: the size of the training text in bytes.
    """

    spec: Spec
    paper: str
    context: int | None
    tokens: float | None = None
    text_bytes: float | None = None


_PLAIN, _TIED = Embedding(), LMHead(tied=True)


def decoder(
    num_layers: int,
    d_model: int,
    *,
    vocab_size: int,
    embedding: Embedding = _PLAIN,
    head: Head = _TIED,
    initialization: Initialization = GPT2_INIT,
    **stack: Any,
) -> TransformerSpec:
    """Return the spec of a decoder-only Transformer.

    The defaults are those of GPT-2, but without absolute position embeddings and without dropout.
    `stack` contains keyword arguments of `Stack.from_mixers`: the required `mixer`, and settings
    that replace the defaults.
    """
    return TransformerSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=embedding,
        decoder=Stack.from_mixers(
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
    """Return the spec of an encoder-only Transformer.

    The defaults are those of BERT: post-norm blocks, GELU, d_ff = 4 d_model and dropout 0.1.
    `stack` contains keyword arguments of `Stack.from_mixers`: the required `mixer` and `norm`, and
    settings that replace the defaults.
    """
    feed_forward = MLP(d_ff=4 * d_model, activation=activation)
    blocks = {"feed_forward": feed_forward, "norm_placement": "post", "dropout": 0.1, **stack}
    return TransformerSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=embedding,
        encoder=Stack.from_mixers(num_layers=num_layers, **blocks),
        heads=heads,
    )


def attention(d_model: int, num_heads: int, **options: Any) -> Attention:
    """Return the spec of multi-head attention in which heads have d_model / num_heads features."""
    return Attention(num_heads=num_heads, head_dim=d_model // num_heads, **options)


def swiglu_spec(d_ff: int) -> MLP:
    """Return the spec of a SwiGLU feed-forward network without biases, as in LLaMA."""
    return MLP(d_ff=d_ff, activation="silu", gated=True, bias=False)
