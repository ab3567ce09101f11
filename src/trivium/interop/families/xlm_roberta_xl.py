"""XLM-RoBERTa-XL and -XXL (Goyal et al. 2021): XLM-RoBERTa with norms before the sublayers."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.bert import LAYER, weight_names
from trivium.interop.families.roberta import ROBERTA, roberta_classes
from trivium.interop.family import NameMap, Option

_LAYER: NameMap = {
    **{name: local for name, local in LAYER.items() if not name.endswith("LayerNorm")},
    "attention.self_attn_layer_norm": "mixer_residual.{norm}",
    "LayerNorm": "feed_forward_residual.{norm}",
}

XLM_ROBERTA_XL = replace(
    ROBERTA,
    model_type="xlm-roberta-xl",
    architectures=roberta_classes("XLMRobertaXL"),
    config={
        **ROBERTA.config,
        "vocab_size": Option("vocab_size", 250_880),
        "hidden_size": Option("d_model", 2560),
        "num_hidden_layers": Option("encoder.num_layers", 36),
        "num_attention_heads": Option("encoder.layers.mixer.num_heads", 32),
        "intermediate_size": Option("encoder.layers.feed_forward.d_ff", 10_240),
        "max_position_embeddings": Option("embedding.positions.max_length", 514),
        "type_vocab_size": Option("embedding.num_token_types", 1, at_least=1),
        "layer_norm_eps": Option("encoder.layers.norm.eps", 1e-5),
    },
    fixed={
        **{path: value for path, value in ROBERTA.fixed.items() if path != "embedding.norm.kind"},
        "encoder.layers.norm_placement": "pre",
    },
    weights={
        **weight_names(_LAYER, "roberta", "roberta.encoder.layer.{i}"),
        "roberta.encoder.LayerNorm": "encoder.norm",
    },
    tokenizer_class="XLMRobertaTokenizer",
    is_variant=True,
)
