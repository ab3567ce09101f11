"""XLNet: encoders with two-stream attention for permutation language modelling."""

from __future__ import annotations

from trivium.models.heads.vocabulary import MLMHead
from trivium.models.stack import Embedding
from trivium.nn.mixers.transformer_xl_attention import TransformerXLAttention
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.xlnet import XLNetPositions
from trivium.presets.preset import Preset, encoder


def _xlnet(
    num_layers: int, d_model: int, *, paper: str = "Yang et al. 2019 (XLNet)", **published: float
) -> Preset:
    """Return an XLNet preset, with a memory of 384 tokens of earlier segments as released.

    In training, the memory is used only if `objective.carry_state` is set in the recipe.
    """
    model = encoder(
        num_layers,
        d_model,
        vocab_size=32_000,
        embedding=Embedding(query_stream=True),
        mixer=TransformerXLAttention(
            num_heads=d_model // 64, head_dim=64, bias=False, positions=XLNetPositions(), memory=384
        ),
        norm=LayerNorm(eps=1e-12),
        heads=(MLMHead(),),
    )
    return Preset(model, paper, 512, **published)


PRESETS: dict[str, Preset] = {
    "xlnet-tiny": _xlnet(2, 128, paper="after Yang et al. 2019 (XLNet)"),
    "xlnet-mini": _xlnet(4, 256, paper="after Yang et al. 2019 (XLNet)"),
    "xlnet-base": _xlnet(12, 768),
    # Section 3.1 and the appendix on pretraining: 500 thousand steps of 8192 rows of 512 tokens.
    "xlnet-large": _xlnet(24, 1024, tokens=5e5 * 8192 * 512),
}
