"""OPT (Zhang et al. 2022)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trivium import spec
from trivium.errors import CheckpointError, SpecError
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
    family="OPT",
    classes={
        "none": "OPTModel",
        "lm": "OPTForCausalLM",
        "classifier": "OPTForSequenceClassification",
        "span": "OPTForQuestionAnswering",
    },
)

_LAYER = {
    "self_attn_layer_norm": ("attention_residual.norm",),
    "self_attn.q_proj": ("attention.query",),
    "self_attn.k_proj": ("attention.key",),
    "self_attn.v_proj": ("attention.value",),
    "self_attn.out_proj": ("attention.output",),
    "final_layer_norm": ("feed_forward_residual.norm",),
    "fc1": ("feed_forward.up",),
    "fc2": ("feed_forward.down",),
}
_OFFSET = 2  # rows of their table of positions that nothing reads


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    config.only("layer_norm_elementwise_affine", True)
    config.ignore("attention_dropout", "activation_dropout", "layerdrop", "init_std")
    config.ignore("classifier_dropout")
    before = bool(config.take("do_layer_norm_before", True))
    # After post-norm blocks there is no last norm that could be removed.
    config.only("_remove_final_layer_norm", *((False,) if before else (False, True)))
    width, heads = config.take("hidden_size"), config.take("num_attention_heads")
    bias = bool(config.take("enable_bias", True))
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=width,
        embedding=spec.Embedding(
            factorised=_factorised(config, architecture, width),
            positions=spec.Learned(
                max_length=config.take("max_position_embeddings", 2048), offset=_OFFSET
            ),
        ),
        decoder=spec.Stack(
            num_layers=config.take("num_hidden_layers"),
            attention=spec.Attention(
                num_heads=heads, head_dim=head_dim_of(width, heads), bias=bias
            ),
            feed_forward=spec.FeedForward(
                d_ff=config.take("ffn_dim"),
                activation=config.choose("activation_function", ACTIVATIONS, "relu"),
                bias=bias,
            ),
            norm=spec.LayerNorm(),
            norm_order="pre" if before else "post",
            dropout=config.take("dropout", 0.1),
        ),
        heads=_HEADS.read(config, architecture),
    )


def _factorised(config: Config, architecture: str, width: int) -> spec.Factorised | None:
    inner = config.take("word_embed_proj_dim", width)
    if inner == width:
        return None
    if architecture != _HEADS.classes["lm"]:
        # Theirs narrows hidden states before any head; ours before the vocabulary alone.
        raise CheckpointError(
            f'config.json: "word_embed_proj_dim" is {inner}, which is not supported for '
            f"{architecture} unless it is hidden_size, {width}; supported: OPTForCausalLM."
        )
    return spec.Factorised(width=inner, bias=False, projected="tokens")


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    decoder = decoder_of(model, "OPT")
    architecture, config = _HEADS.write(model)
    if model.embedding.factorised and architecture != _HEADS.classes["lm"]:
        raise SpecError(f"{architecture} cannot have token vectors of another width than d_model.")
    return architecture, config | {
        "vocab_size": model.vocab_size,
        "max_position_embeddings": learned_of(model, "OPT").max_length,
        "hidden_size": model.d_model,
        "word_embed_proj_dim": model.d_embedding,
        "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": decoder.attention_of(0).num_heads,
        "ffn_dim": decoder.feed_forward.d_ff,
        "activation_function": their_activation(decoder.feed_forward, "OPT"),
        "do_layer_norm_before": decoder.norm_order == "pre",
        "enable_bias": decoder.feed_forward.bias,
        "dropout": decoder.dropout,
        "attention_dropout": decoder.dropout,
    }


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    decoder = decoder_of(model, "OPT")
    found = [
        Row("model.decoder.embed_tokens.weight", ("tokens.weight",)),
        Row("model.decoder.embed_positions.weight", ("decoder.embedding.positions.weight",)),
        *layer_rows(decoder, "model.decoder.layers", _LAYER),
        *_HEADS.rows(model),
    ]
    if decoder.norm_order == "pre":
        found += rows("decoder.norm", "model.decoder.final_layer_norm")
    if model.embedding.factorised:
        found += [
            Row("model.decoder.project_in.weight", ("decoder.embedding.widen_tokens.weight",)),
            Row("model.decoder.project_out.weight", ("heads.lm.narrow.weight",)),
        ]
    return found


def _describes(model: spec.ModelSpec) -> bool:
    def write(body: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
        # The one class that can have everything a body can have.
        return _write(body.replace(heads=(spec.LMHead(tied=True),)))

    return survives(model, _read, write, _table)


OPT = Family(
    model_type="opt",
    architectures=_HEADS.architectures,
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="model.",
    copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
