"""DeepSeek-V3 (DeepSeek-AI 2024b): DeepSeek-V2 with sigmoid routing scores and a correction bias.

The multi-token prediction (MTP) modules are ignored, as in `transformers`.
"""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.deepseek_v2 import CLASSES, DEEPSEEK_V2
from trivium.interop.family import Option, hf_classes

_EXPERTS, _LAYOUT = "decoder.layers.feed_forward", "decoder.layers.mixer.positions.layout"

DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    model_type="deepseek_v3",
    architectures=hf_classes("DeepseekV3", f"{CLASSES} ForTokenClassification"),
    config={
        **DEEPSEEK_V2.config,
        "n_group": f"{_EXPERTS}.num_groups",
        "topk_group": f"{_EXPERTS}.top_k_groups",
        "norm_topk_prob": Option(f"{_EXPERTS}.normalized", True),
        "rope_interleave": Option(_LAYOUT, True, {True: "interleaved", False: "halves"}),
    },
    fixed={
        **DEEPSEEK_V2.fixed,
        f"{_EXPERTS}.scores": "sigmoid",
        f"{_EXPERTS}.corrected": True,
        f"{_EXPERTS}.scores_per_group": 2,
    },
    expected={"attention_bias": False, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    ignored=f"{DEEPSEEK_V2.ignored} num_mtp_layers num_nextn_predict_layers",
    buffers=(*DEEPSEEK_V2.buffers, r"model\.layers\.61\..*"),  # the first MTP module
    hooks=DEEPSEEK_V2.hooks[:1],
)
