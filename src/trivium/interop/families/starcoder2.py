"""StarCoder2 (Lozhkov et al. 2024): LayerNorm, biases, grouped queries and a sliding window."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, ROPE_HOOK, weight_names
from trivium.interop.families.mistral import read_window, write_window
from trivium.interop.family import Hook, Option, SpecTree, activation, hf_classes, kv_heads_option
from trivium.interop.hf_config import ConfigReader


def _read_window(config: ConfigReader, tree: SpecTree) -> None:
    """Read the sliding window; by default there is none."""
    read_window(config, tree, default=None)


STARCODER2 = replace(
    LLAMA,
    model_type="starcoder2",
    architectures=hf_classes(
        "Starcoder2", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    config={
        **{name: row for name, row in CONFIG.items() if name != "rms_norm_eps"},
        "vocab_size": Option("vocab_size", 49_152),
        "hidden_size": Option("d_model", 3072),
        "num_hidden_layers": Option("decoder.num_layers", 30),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 24),
        "num_key_value_heads": kv_heads_option(missing=2, num_heads=24),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 12_288),
        "hidden_act": activation("gelu_pytorch_tanh", "decoder.layers.feed_forward"),
        "norm_epsilon": Option("decoder.layers.norm.eps", 1e-5),
        "use_bias": Option(("decoder.layers.mixer.bias", "decoder.layers.feed_forward.bias"), True),
        "residual_dropout": Option("decoder.dropout", 0.0),
        "embedding_dropout": Option("decoder.dropout", write_only=True),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={
        **FIXED,
        "decoder.layers.feed_forward.gated": False,
        "decoder.layers.norm.kind": "layer",
    },
    weights=weight_names({"mlp.c_fc": "feed_forward.up", "mlp.c_proj": "feed_forward.down"}),
    expected={"mlp_type": "default", "norm_type": "layer_norm"},
    ignored="",
    hooks=(ROPE_HOOK, Hook(_read_window, write_window)),
    tokenizer_class="GPT2Tokenizer",
)
