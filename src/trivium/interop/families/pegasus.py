"""Pegasus (Zhang et al. 2019): a Transformer with norms before the sublayers, for summaries."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.bart import BART, LAYERS
from trivium.interop.family import hf_classes

# Defaults of the options, whose names are BART's.
_SIZES = {
    "vocab_size": 50_265,
    "d_model": 1024,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 12),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 16),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4096),
}
CONFIG = {
    name: replace(option, default=_SIZES.get(name, option.default))
    for name, option in BART.options.items()
}
FIXED = {
    **{path: value for path, value in BART.fixed.items() if not path.startswith("embedding")},
    "stacks.layers.norm_placement": "pre",
}
PEGASUS = replace(
    BART,
    model_type="pegasus",
    architectures=hf_classes("Pegasus", "ForConditionalGeneration Model"),
    config=CONFIG,
    fixed={
        **FIXED,
        "embedding.positions.kind": "sinusoidal",
        "embedding.positions.layout": "halves",
    },
    weights={
        "model.shared": "tokens",
        **LAYERS,
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.layer_norm": "decoder.norm",
    },
    expected={
        "is_decoder": False,
        "normalize_before": True,
        "add_final_layer_norm": True,
        "add_bias_logits": False,
        "normalize_embedding": False,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
    },
    ignored=f"{BART.ignored} extra_pos_embeddings gradient_checkpointing",
    buffers=(*BART.buffers, r"(model\.)?(encoder|decoder)\.embed_positions\.weight"),
    tokenizer_class="PegasusTokenizer",
)
