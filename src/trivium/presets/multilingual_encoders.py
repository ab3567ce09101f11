"""RoBERTa for many languages (XLM-RoBERTa, of all sizes) and for French (CamemBERT)."""

from __future__ import annotations

from functools import partial

from trivium.models.stack import Embedding
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.learned import Learned
from trivium.presets.encoders import roberta
from trivium.presets.preset import GELU_MLM, Preset, attention, encoder

_NORM = LayerNorm(eps=1e-5)
_xlm_roberta = partial(roberta, paper="Conneau et al. 2019 (XLM-RoBERTa)", vocab_size=250_002)
_camembert = partial(roberta, paper="Martin et al. 2019 (CamemBERT)", vocab_size=32_005)


def _xlm_roberta_xl(num_layers: int, d_model: int) -> Preset:
    """Return an XLM-RoBERTa preset with norms before the sublayers, and 32 heads."""
    model = encoder(
        num_layers,
        d_model,
        vocab_size=250_880,
        embedding=Embedding(
            positions=Learned(max_length=512, offset=2, counted="not-padding"), num_token_types=1
        ),
        mixer=attention(d_model, 32),
        norm=_NORM,
        norm_placement="pre",
        heads=(GELU_MLM,),
    )
    return Preset(model, "Goyal et al. 2021 (XLM-RoBERTa XL and XXL)", 512)


PRESETS: dict[str, Preset] = {
    "xlm-roberta-base": _xlm_roberta(12, 768),
    "xlm-roberta-large": _xlm_roberta(24, 1024),
    "xlm-roberta-xl": _xlm_roberta_xl(36, 2560),
    "xlm-roberta-xxl": _xlm_roberta_xl(48, 4096),
    "camembert-base": _camembert(12, 768),
    "camembert-large": _camembert(24, 1024),
}
