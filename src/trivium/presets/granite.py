"""Granite 3.1: LLaMA with multipliers of embeddings, residual branches, scores and logits."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.stack import Embedding
from trivium.nn.norm import RMSNorm
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, attention, decoder, swiglu_spec


def _granite(d_model: int, d_ff: int, *, base: float, logits_scaling: float) -> Preset:
    """Return a preset of Granite 3.1 with 40 layers, 32 heads and 8 key-value heads.

    The logits are divided by `logits_scaling`, and `base` is that of RoPE for 131,072 tokens.
    """
    model = decoder(
        40,
        d_model,
        vocab_size=49_155,
        embedding=Embedding(scale=12.0),
        mixer=attention(
            d_model,
            32,
            num_kv_heads=8,
            bias=False,
            scale=32 / d_model,  # 1 / head_dim
            positions=Rotary(base=base),
        ),
        feed_forward=swiglu_spec(d_ff),
        norm=RMSNorm(eps=1e-5),
        residual_multiplier=0.22,
        head=LMHead(tied=True, scale=1.0 / logits_scaling),
    )
    return Preset(model, "Granite Team 2024 (Granite 3.0 and 3.1)", 131_072, tokens=12e12)


PRESETS: dict[str, Preset] = {
    "granite-3.1-2b": _granite(2048, 8192, base=5e6, logits_scaling=8.0),
    "granite-3.1-8b": _granite(4096, 12_800, base=1e7, logits_scaling=16.0),
}
