"""CamemBERT (Martin et al. 2020): RoBERTa for French."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.roberta import ROBERTA, roberta_classes

CAMEMBERT = replace(
    ROBERTA,
    model_type="camembert",
    architectures=roberta_classes("Camembert"),
    tokenizer_class="CamembertTokenizer",
    is_variant=True,
)
