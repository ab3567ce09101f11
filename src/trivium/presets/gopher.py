"""Gopher and Chinchilla: GPT-2 with RMSNorm and Transformer-XL relative position embeddings."""

from __future__ import annotations

from functools import partial

from trivium.nn.norm import RMSNorm
from trivium.nn.positions.transformer_xl import TransformerXLPositions
from trivium.presets.preset import Preset, attention, decoder


def _gopher(
    num_layers: int,
    d_model: int,
    num_heads: int,
    *,
    paper: str = "Rae et al. 2021 (Gopher)",
    **published: float,
) -> Preset:
    """Return a Gopher preset, trained on sequences of 2,048 tokens and usable for longer ones.

    The paper gives only the differences from GPT-2 (section 2.1). The projections in attention have
    no biases. As in Transformer-XL, the attention scores have two bias vectors, u and v, and each
    layer has its own projection of the relative position embeddings. With these projections, the
    parameter counts match table A9 of Hoffmann et al. 2022 to 0.1 %.
    """
    mixer = attention(d_model, num_heads, bias=False, positions=TransformerXLPositions())
    model = decoder(num_layers, d_model, vocab_size=32_000, mixer=mixer, norm=RMSNorm())
    return Preset(model, paper, 2048, **published)


_chinchilla = partial(_gopher, paper="Hoffmann et al. 2022 (Chinchilla)")

PRESETS: dict[str, Preset] = {
    "gopher-tiny": _gopher(2, 128, 2),
    "gopher-mini": _gopher(4, 256, 4),
    # Rae et al. 2021, table 1.
    "gopher-44m": _gopher(8, 512, 16, tokens=300e9),
    "gopher-117m": _gopher(12, 768, 12, tokens=300e9),
    "gopher-417m": _gopher(12, 1536, 12, tokens=300e9),
    "gopher-1.4b": _gopher(24, 2048, 16, tokens=300e9),
    "gopher-7.1b": _gopher(32, 4096, 32, tokens=300e9),
    "gopher-280b": _gopher(80, 16_384, 128, tokens=300e9),
    "chinchilla-tiny": _chinchilla(2, 128, 2),
    "chinchilla-mini": _chinchilla(4, 256, 4),
    # Some of the models whose losses the paper fits (table A9), and Chinchilla itself (table 4).
    "chinchilla-74m": _chinchilla(10, 640, 10),
    "chinchilla-425m": _chinchilla(18, 1280, 10),
    "chinchilla-1.3b": _chinchilla(22, 2048, 16),
    "chinchilla-2.6b": _chinchilla(30, 2560, 20),
    "chinchilla-9.3b": _chinchilla(42, 4096, 32),
    "chinchilla-16b": _chinchilla(47, 5120, 40),
    "chinchilla-70b": _chinchilla(80, 8192, 64, tokens=1.4e12),
}
