"""XLM-RoBERTa (Conneau et al. 2019): RoBERTa with a multilingual tokenizer."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.roberta import ROBERTA, roberta_classes

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    architectures=roberta_classes("XLMRoberta"),
    tokenizer_class="XLMRobertaTokenizer",
    is_variant=True,
)
