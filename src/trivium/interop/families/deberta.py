"""DeBERTa (He et al. 2020): like v2, with a fused QKV projection grouped by head."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.bert import LAYER, weight_names
from trivium.interop.families.deberta_v2 import DEBERTA_V2, POSITIONS_HOOK
from trivium.interop.family import QKV, encoder_classes

_LAYER = {
    "attention.self.in_proj.weight": tuple(f"{part}.weight" for part in QKV),
    "attention.self.q_bias": "mixer.query.bias",
    "attention.self.v_bias": "mixer.value.bias",
    "attention.self.pos_proj": "mixer.positions.key",
    "attention.self.pos_q_proj": "mixer.positions.query",
    **{hf: local for hf, local in LAYER.items() if not hf.startswith("attention.self.")},
}

DEBERTA = replace(
    DEBERTA_V2,
    model_type="deberta",
    architectures=encoder_classes("Deberta"),
    fixed={**DEBERTA_V2.fixed, "encoder.layers.mixer.key_bias": False},
    weights={
        **weight_names(_LAYER, "deberta", "deberta.encoder.layer.{i}"),
        "deberta.encoder.rel_embeddings": "encoder.tables.0",
    },
    fused_per_head=True,
    expected={"talking_head": False},
    ignored="pooler_dropout cls_dropout",
    hooks=(POSITIONS_HOOK,),
)
