"""GLM-4-0414 (GLM Team 2024): GLM with norms before and after both sublayers."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.glm import GLM
from trivium.interop.family import hf_classes, per_layer

_LAYER = {
    "post_self_attn_layernorm": "mixer_residual.post_sublayer_norm",
    "post_attention_layernorm": "feed_forward_residual.pre_norm",
    "post_mlp_layernorm": "feed_forward_residual.post_sublayer_norm",
}

GLM4 = replace(
    GLM,
    model_type="glm4",
    architectures=hf_classes(
        "Glm4", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    fixed={**GLM.fixed, "decoder.layers.norm_placement": "sandwich"},
    weights={
        **GLM.weights,  # type: ignore[dict-item]
        **per_layer("model.layers.{i}", "decoder", _LAYER),
    },
)
