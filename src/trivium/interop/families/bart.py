"""BART (Lewis et al. 2019), and the tables that Marian shares with it."""

from __future__ import annotations

from typing import Any

from trivium.interop.family import ACTIVATIONS, Architecture, Family, Hook, Option, SpecTree, both
from trivium.interop.hf_config import ConfigReader
from trivium.spec import ModelSpec

CONFIG = {
    "d_model": "d_model",
    "encoder_layers": "encoder.num_layers",
    "decoder_layers": "decoder.num_layers",
    "encoder_attention_heads": "encoder.attention.num_heads",
    "decoder_attention_heads": "decoder.attention.num_heads",
    "encoder_ffn_dim": "encoder.feed_forward.d_ff",
    "decoder_ffn_dim": "decoder.feed_forward.d_ff",
    "activation_function": Option(both("feed_forward.activation"), "gelu", ACTIVATIONS),
    "dropout": Option(both("dropout"), 0.1),
    "max_position_embeddings": Option("embedding.positions.max_length", 1024),
}

FIXED = {
    **dict.fromkeys(both("norm.kind"), "layer"),
    **dict.fromkeys(both("norm_order"), "post"),
}

ONLY = {
    "is_decoder": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
}

# Options that change training alone.
IGNORED = (
    "attention_dropout activation_dropout classifier_dropout classif_dropout encoder_layerdrop "
    "decoder_layerdrop init_std num_hidden_layers force_bos_token_to_be_generated save_step"
)


def _read_scale(config: ConfigReader, tree: SpecTree) -> None:
    """Token vectors may be multiplied by the root of the width."""
    scaled = config.take("scale_embedding", False)
    tree.set("embedding.scale", tree.get("d_model") ** 0.5 if scaled else 1.0)


def _write_scale(spec: ModelSpec, config: dict[str, Any]) -> None:
    config["scale_embedding"] = spec.embedding.scale != 1.0
    config["is_encoder_decoder"] = True
    config["attention_dropout"] = 0.0


SCALE = Hook(_read_scale, _write_scale)


def _layer(side: str, hf: str, local: str) -> dict[str, str]:
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    return {
        f"model.{side}.layers.{{i}}.{hf}.{name}": f"{side}.layers.{{i}}.{local}.{part}"
        for name, part in names.items()
    }


def layers() -> dict[str, str]:
    """The weights of the blocks of both stacks."""
    table = {}
    for side in ("encoder", "decoder"):
        hf, local = f"model.{side}.layers.{{i}}", f"{side}.layers.{{i}}"
        table |= {
            **_layer(side, "self_attn", "attention"),
            f"{hf}.self_attn_layer_norm": f"{local}.attention_residual.norm",
            f"{hf}.fc1": f"{local}.feed_forward.up",
            f"{hf}.fc2": f"{local}.feed_forward.down",
            f"{hf}.final_layer_norm": f"{local}.feed_forward_residual.norm",
        }
    table |= _layer("decoder", "encoder_attn", "cross_attention")
    table["model.decoder.layers.{i}.encoder_attn_layer_norm"] = (
        "decoder.layers.{i}.cross_residual.norm"
    )
    return table


BART = Family(
    "bart",
    architectures={
        "BartForConditionalGeneration": Architecture(("lm",)),
        "BartModel": Architecture(),
        "BartForSequenceClassification": Architecture(("classifier",)),
        "BartForQuestionAnswering": Architecture(("span",)),
    },
    stacks=("encoder", "decoder"),
    config={"vocab_size": "vocab_size", **CONFIG},
    fixed={
        **FIXED,
        "embedding.positions.kind": "learned",
        "embedding.positions.offset": 2,
        "embedding.norm.kind": "layer",
        "heads.lm.tied": True,
        "heads.classifier.pooling": "last",
        "heads.classifier.dense.activation": "tanh",
    },
    weights={
        "model.shared": "tokens",
        "model.encoder.embed_positions": "encoder.embedding.positions",
        "model.encoder.layernorm_embedding": "encoder.embedding.norm",
        "model.decoder.embed_positions": "decoder.embedding.positions",
        "model.decoder.layernorm_embedding": "decoder.embedding.norm",
        **layers(),
    },
    heads={
        "lm": {},
        "classifier": {
            "classification_head.dense": "dense.linear",
            "classification_head.out_proj": "classifier",
        },
        "span": {"qa_outputs": "classifier"},
    },
    base="model.",
    only={
        **ONLY,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "extra_pos_embeddings": 2,
        "tie_word_embeddings": True,
    },
    ignored=IGNORED,
    num_labels=3,
    copies={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    buffers=(r"(model\.)?(encoder|decoder)\.version",),
    zeros=("final_logits_bias",),
    hooks=(SCALE,),
)
