"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trivium import spec
from trivium.interop.config import ACTIVATIONS, Config
from trivium.interop.decoders import (
    DecoderHeads,
    decoder_of,
    head_dim_of,
    layer_rows,
    learned_of,
    their_activation,
)
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row, rows

_HEADS = DecoderHeads(
    family="GPT-2",
    classes={
        "none": "GPT2Model",
        "lm": "GPT2LMHeadModel",
        "classifier": "GPT2ForSequenceClassification",
        "tagger": "GPT2ForTokenClassification",
        "span": "GPT2ForQuestionAnswering",
    },
)

SUMMARY = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)
"""Options of GPT-1 and GPT-2 that only their classes with two heads read, which are refused."""

CONV1D_LAYER = {
    "ln_1": ("attention_residual.norm",),
    "attn.c_attn": ("attention.query", "attention.key", "attention.value"),
    "attn.c_proj": ("attention.output",),
    "ln_2": ("feed_forward_residual.norm",),
    "mlp.c_fc": ("feed_forward.up",),
    "mlp.c_proj": ("feed_forward.down",),
}
"""Names inside a layer of GPT-1 and GPT-2: theirs -> ours."""


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    config.only("scale_attn_by_inverse_layer_idx", False)
    config.only("add_cross_attention", False)
    # Upcasting changes the precision of scores, not what they are.
    config.ignore("attn_pdrop", "embd_pdrop", "n_ctx", "reorder_and_upcast_attn")
    config.ignore("classifier_dropout", "hidden_dropout", *SUMMARY)
    width, heads = config.take("n_embd"), config.take("n_head")
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=width,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=config.take("n_positions", 1024))
        ),
        decoder=spec.Stack(
            num_layers=config.take("n_layer"),
            attention=spec.Attention(
                num_heads=heads,
                head_dim=head_dim_of(width, heads),
                scale=None if config.take("scale_attn_weights", True) else 1.0,
            ),
            feed_forward=spec.FeedForward(
                d_ff=config.take("n_inner", 4 * width),
                activation=config.choose("activation_function", ACTIVATIONS, "gelu_new"),
            ),
            norm=spec.LayerNorm(eps=config.take("layer_norm_epsilon", 1e-5)),
            norm_order="pre",
            dropout=config.take("resid_pdrop", 0.1),
        ),
        heads=_HEADS.read(config, architecture),
        initialization=spec.Normal(branches="scaled"),
    )


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    decoder = decoder_of(model, "GPT-2")
    attention = decoder.attention_of(0)
    architecture, config = _HEADS.write(model)
    return architecture, config | {
        "vocab_size": model.vocab_size,
        "n_positions": learned_of(model, "GPT-2").max_length,
        "n_embd": model.d_model,
        "n_layer": decoder.num_layers,
        "n_head": attention.num_heads,
        "n_inner": decoder.feed_forward.d_ff,
        "activation_function": their_activation(decoder.feed_forward, "GPT-2"),
        "layer_norm_epsilon": decoder.norm.eps,
        "scale_attn_weights": attention.scale != 1.0,
        "resid_pdrop": decoder.dropout,
        "embd_pdrop": decoder.dropout,
        "attn_pdrop": decoder.dropout,
    }


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    return [
        Row("transformer.wte.weight", ("tokens.weight",)),
        Row("transformer.wpe.weight", ("decoder.embedding.positions.weight",)),
        *layer_rows(decoder_of(model, "GPT-2"), "transformer.h", CONV1D_LAYER, transposed=True),
        *rows("decoder.norm", "transformer.ln_f"),
        *_HEADS.rows(model),
    ]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table)


GPT2 = Family(
    model_type="gpt2",
    architectures=_HEADS.architectures,
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"},
    ignored=(r".*\.attn\.(masked_)?bias",),
)
