"""DeepSeek-V3 (DeepSeek-AI 2024b): DeepSeek-V2 with sigmoid scores and a correction bias.

The modules that predict more than one token (MTP) are not read, as in `transformers`.
"""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.deepseek_v2 import (
    CLASSES,
    DEEPSEEK_V2,
    EXPERTS,
    MIXER,
    config_with,
    hook_for,
)
from trivium.interop.families.llama import LLAMA
from trivium.interop.family import Option, classes

DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    model_type="deepseek_v3",
    architectures=classes("DeepseekV3", f"{CLASSES} ForTokenClassification"),
    config={
        **config_with(
            {
                "vocab_size": 129_280,
                "hidden_size": 7168,
                "num_hidden_layers": 61,
                "num_attention_heads": 128,
                "moe_intermediate_size": 2048,
                "n_routed_experts": 256,
                "num_experts_per_tok": 8,
                "routed_scaling_factor": 2.5,
            }
        ),
        "n_group": Option(f"{EXPERTS}.num_groups", 8),
        "topk_group": Option(f"{EXPERTS}.num_chosen_groups", 4),
        "norm_topk_prob": Option(f"{EXPERTS}.normalized", True),
        "rope_interleave": Option(
            f"{MIXER}.positions.layout", True, {True: "interleaved", False: "halves"}
        ),
    },
    fixed={
        **{path: value for path, value in DEEPSEEK_V2.fixed.items() if "layout" not in path},
        f"{EXPERTS}.scores": "sigmoid",
        f"{EXPERTS}.corrected": True,
        f"{EXPERTS}.scores_per_group": 2,
    },
    expected={
        "attention_bias": False,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
    },
    ignored=f"{DEEPSEEK_V2.ignored} num_mtp_layers num_nextn_predict_layers",
    # The layer after the last one predicts one more token.
    buffers=(*LLAMA.buffers, r"model\.layers\.61\..*"),
    hooks=(hook_for(shared=1, first=3, d_ff=18_432),),
)
