"""mBART and mBART-50 (Liu et al. 2020; Tang et al. 2020): BART with norms before the sublayers."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.bart import BART
from trivium.interop.families.pegasus import CONFIG, FIXED, PEGASUS
from trivium.interop.family import hf_classes

MBART = replace(
    BART,
    model_type="mbart",
    architectures=hf_classes(
        "MBart", "ForConditionalGeneration Model ForSequenceClassification ForQuestionAnswering"
    ),
    config=CONFIG,
    fixed={**BART.fixed, **FIXED},
    weights={
        **BART.weights,  # type: ignore[dict-item]
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.layer_norm": "decoder.norm",
    },
    expected={**PEGASUS.expected, "normalize_embedding": True, "static_position_embeddings": False},
    ignored=PEGASUS.ignored,
    num_labels=2,
    tokenizer_class="MBartTokenizer",
)
