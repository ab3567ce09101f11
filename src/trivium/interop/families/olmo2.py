"""OLMo 2 (OLMo Team 2024): post-sublayer norms, and QK norm over all heads together."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.gemma3 import GEMMA3
from trivium.interop.families.llama import CONFIG, ROPE_HOOK
from trivium.interop.families.qwen3 import NORM_EPS, QWEN3
from trivium.interop.family import Option, hf_classes

OLMO2 = replace(
    QWEN3,
    model_type="olmo2",
    architectures=hf_classes("Olmo2", "ForCausalLM Model ForSequenceClassification"),
    config={
        **CONFIG,
        "rms_norm_eps": Option(NORM_EPS, 1e-5),
        "attention_bias": QWEN3.config["attention_bias"],
    },
    fixed={
        **QWEN3.fixed,
        "decoder.layers.mixer.qk_norm_over": "all-heads",
        "decoder.layers.norm_placement": "post-sublayer",
    },
    # The norms have the same names as in Gemma; files contain no norms before sublayers.
    weights=GEMMA3.weights,
    hooks=(ROPE_HOOK,),
    tokenizer_class="",
)
