"""Falcon: decoders trained on RefinedWeb, with one or a few key-value heads."""

from __future__ import annotations

from trivium.nn.blocks import BlockKind, ParallelLayers, SequentialLayers
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.positions import Positions
from trivium.nn.positions.alibi import ALiBi
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, attention, decoder

_ROTARY = Rotary()


def _falcon(
    num_layers: int,
    d_model: int,
    *,
    num_kv_heads: int | None,
    block: BlockKind,
    tokens: float,
    paper: str = "Almazrouei et al. 2023 (Falcon)",
    positions: Positions = _ROTARY,
    bias: bool = False,
    vocab_size: int = 65_024,
) -> Preset:
    """Return a preset of Falcon: heads of 64 dimensions, LayerNorm and GELU."""
    model = decoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        mixer=attention(
            d_model, d_model // 64, num_kv_heads=num_kv_heads, bias=bias, positions=positions
        ),
        feed_forward=MLP(d_ff=4 * d_model, activation="gelu", bias=bias),
        block=block,
    )
    return Preset(model, paper, 2048, tokens=tokens)


PRESETS: dict[str, Preset] = {
    "falcon-rw-1b": _falcon(
        24,
        2048,
        num_kv_heads=None,
        block=SequentialLayers(),
        tokens=350e9,
        paper="Penedo et al. 2023 (RefinedWeb)",
        # The released code scales and rounds ALiBi with the scores.
        positions=ALiBi(scale=64**-0.5, rounding="bfloat16"),
        bias=True,
        vocab_size=50_304,
    ),
    "falcon-7b": _falcon(
        32, 4544, num_kv_heads=1, block=ParallelLayers(norms="shared"), tokens=1.5e12
    ),
    "falcon-40b": _falcon(
        60, 8192, num_kv_heads=8, block=ParallelLayers(norms="separate"), tokens=1e12
    ),
}
