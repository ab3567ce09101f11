"""Gemma 1 to 3: decoders with GEGLU; later ones have sliding-window layers and sandwich norms."""

from __future__ import annotations

from typing import Any

from trivium.models.heads.vocabulary import LMHead
from trivium.models.stack import Embedding
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import RMSNorm
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, decoder


def _gemma(
    num_layers: int, d_model: int, num_heads: int, num_kv_heads: int, d_ff: int, *, tokens: float
) -> Preset:
    """Return a preset of the first Gemma: LLaMA with GEGLU, wide heads and scaled embeddings.

    Sizes are from table 1 of the paper, which gives the width of gate and up projection together.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=256_000,
        embedding=Embedding(scale=d_model**0.5),
        mixer=Attention(
            num_heads=num_heads,
            head_dim=256,
            num_kv_heads=num_kv_heads,
            bias=False,
            positions=Rotary(),
        ),
        feed_forward=MLP(d_ff=d_ff, activation="gelu_tanh", gated=True, bias=False),
        norm=RMSNorm(offset=1),
    )
    return Preset(model, "Gemma Team 2024 (Gemma)", 8192, tokens=tokens)


def _gemma2(
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    *,
    head_dim: int = 256,
    scale: float | None = None,
    window: int = 4095,
    **published: float,
) -> Preset:
    """Return a Gemma 2 preset: sandwich norms, soft-capping of attention scores and logits.

    Sliding-window and full attention alternate, starting with a window. A query attends to itself
    and `window` earlier positions. Sizes are from tables 1 and 2 of the paper, which counts 256,128
    token embeddings; the released models have 256,000.
    """
    full = Attention(
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        bias=False,
        scale=scale,
        soft_cap=50.0,
        positions=Rotary(),
    )
    model = decoder(
        num_layers,
        d_model,
        vocab_size=256_000,
        embedding=Embedding(scale=d_model**0.5),
        mixer=(full.replace(pattern=Sliding(window=window)), full),
        feed_forward=MLP(d_ff=d_ff, activation="gelu_tanh", gated=True, bias=False),
        norm=RMSNorm(offset=1),
        norm_placement="sandwich",
        head=LMHead(tied=True, soft_cap=30.0),
    )
    return Preset(model, "Gemma Team 2024 (Gemma 2)", 8192, **published)


def _gemma3(
    *sizes: int, head_dim: int = 256, num_local: int = 5, window: int = 511, **published: float
) -> Preset:
    """Return a Gemma 3 preset: Gemma 2 with QK-norm instead of soft-capping (section 2.1).

    `sizes` are the positional arguments of `_gemma2`. After every `num_local` layers with
    sliding-window attention comes one layer with full attention and a larger RoPE base. In a
    window, a query attends to itself and `window` earlier positions.
    """
    spec: Any = _gemma2(*sizes, head_dim=head_dim).spec
    full = spec.decoder.mixers[1].replace(
        soft_cap=None, qk_norm=RMSNorm(offset=1), positions=Rotary(base=1e6)
    )
    sliding = full.replace(pattern=Sliding(window=window), positions=Rotary())
    model = spec.replace(
        vocab_size=262_144,
        decoder=spec.decoder.with_layers(mixer=(*[sliding] * num_local, full)),
        heads=(LMHead(tied=True),),
    )
    return Preset(model, "Gemma Team 2025 (Gemma 3)", 32_768, **published)


PRESETS: dict[str, Preset] = {
    "gemma-2b": _gemma(18, 2048, 8, 1, 16_384, tokens=3e12),
    "gemma-7b": _gemma(28, 3072, 16, 16, 24_576, tokens=6e12),
    "gemma2-tiny": _gemma2(2, 128, 4, 2, 512, head_dim=32, window=63),
    "gemma2-mini": _gemma2(4, 256, 4, 2, 1024, head_dim=64, window=63),
    "gemma2-2b": _gemma2(26, 2304, 8, 4, 9216, tokens=2e12),
    "gemma2-9b": _gemma2(42, 3584, 16, 8, 14_336, tokens=8e12),
    # Attention scores are divided by sqrt(d_model / num_heads), not by sqrt(head_dim).
    "gemma2-27b": _gemma2(46, 4608, 32, 16, 36_864, head_dim=128, scale=144**-0.5, tokens=13e12),
    # Small sizes have fewer than five windowed layers per full layer, because they have few layers.
    # The published sizes above 1B also read images.
    "gemma3-tiny": _gemma3(2, 128, 4, 2, 512, head_dim=32, num_local=1, window=63),
    "gemma3-mini": _gemma3(4, 256, 4, 2, 1024, head_dim=64, num_local=3, window=63),
    "gemma3-1b": _gemma3(26, 1152, 4, 1, 6912, tokens=2e12),
}
