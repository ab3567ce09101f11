"""GPT (Radford et al. 2018)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trivium import spec
from trivium.errors import SpecError
from trivium.interop.config import Config
from trivium.interop.decoders import DecoderHeads, decoder_of, head_dim_of, layer_rows, learned_of
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row
from trivium.interop.gpt2 import CONV1D_LAYER, SUMMARY

_HEADS = DecoderHeads(
    family="GPT-1",
    classes={
        "none": "OpenAIGPTModel",
        "lm": "OpenAIGPTLMHeadModel",
        "classifier": "OpenAIGPTForSequenceClassification",
    },
)

# Their "gelu" is the approximation by tanh here, unlike in their other families.
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    config.only("n_special", 0)
    config.ignore("attn_pdrop", "embd_pdrop", "n_ctx", "predict_special_tokens", *SUMMARY)
    width, heads = config.take("n_embd"), config.take("n_head")
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=width,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=config.take("n_positions", 512))
        ),
        decoder=spec.Stack(
            num_layers=config.take("n_layer"),
            attention=spec.Attention(num_heads=heads, head_dim=head_dim_of(width, heads)),
            feed_forward=spec.FeedForward(
                d_ff=4 * width, activation=config.choose("afn", _ACTIVATIONS, "gelu")
            ),
            norm=spec.LayerNorm(eps=config.take("layer_norm_epsilon", 1e-5)),
            norm_order="post",
            dropout=config.take("resid_pdrop", 0.1),
        ),
        heads=_HEADS.read(config, architecture),
    )


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    decoder = decoder_of(model, "GPT-1")
    activation = _THEIR_ACTIVATIONS.get(str(decoder.feed_forward.activation))
    if activation is None:
        raise SpecError(f"GPT-1 has no activation {decoder.feed_forward.activation!r}.")
    architecture, config = _HEADS.write(model)
    return architecture, config | {
        "vocab_size": model.vocab_size,
        "n_positions": learned_of(model, "GPT-1").max_length,
        "n_embd": model.d_model,
        "n_layer": decoder.num_layers,
        "n_head": decoder.attention_of(0).num_heads,
        "afn": activation,
        "layer_norm_epsilon": decoder.norm.eps,
        "resid_pdrop": decoder.dropout,
        "embd_pdrop": decoder.dropout,
        "attn_pdrop": decoder.dropout,
    }


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    return [
        Row("transformer.tokens_embed.weight", ("tokens.weight",)),
        Row("transformer.positions_embed.weight", ("decoder.embedding.positions.weight",)),
        *layer_rows(decoder_of(model, "GPT-1"), "transformer.h", CONV1D_LAYER, transposed=True),
        *_HEADS.rows(model),
    ]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table)


GPT1 = Family(
    model_type="openai-gpt",
    architectures=_HEADS.architectures,
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="transformer.",
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored=(r".*\.attn\.bias", r".*\.position_ids"),
)
