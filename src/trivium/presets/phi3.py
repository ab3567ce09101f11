"""Phi-3-mini and Phi-4-mini: LLaMA-like decoders with a sliding window or LongRoPE."""

from __future__ import annotations

from trivium.nn.mixers.attention import Attention
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import LongRopeScaling, Rotary
from trivium.presets.decoders import ROTARY_ATTENTION, llama
from trivium.presets.preset import Preset, attention

# Phi-4-mini's factors of its 48 pairs of rotary dimensions, from the released configuration.
_LONG_FACTORS = (
    *(1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817),
    *(2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023),
    *(4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372),
    *(10.4687158, 11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807),
    *(22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66),
    *(32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77),
)


def _phi4_mini_attention() -> Attention:
    """Return the attention of Phi-4-mini: LongRoPE on three quarters of every head."""
    scaling = LongRopeScaling(
        factor=32.0,
        original_max_length=4096,
        short_factor=(1.0,) * len(_LONG_FACTORS),
        long_factor=_LONG_FACTORS,
    )
    positions = Rotary(scaling=scaling, partial_rotary_factor=0.75)
    return attention(3072, 24, bias=False, positions=positions)


PRESETS: dict[str, Preset] = {
    # As released with a context of 4096 tokens: a query attends to itself and 2046 tokens before.
    "phi-3-mini": llama(
        32,
        3072,
        32,
        8192,
        paper="Abdin et al. 2024 (Phi-3)",
        context=4096,
        vocab_size=32_064,
        attention=ROTARY_ATTENTION.replace(pattern=Sliding(window=2046)),
        tokens=3.3e12,
    ),
    "phi-4-mini": llama(
        32,
        3072,
        24,
        8192,
        paper="Abouelenin et al. 2025 (Phi-4-Mini)",
        context=131_072,
        num_kv_heads=8,
        vocab_size=200_064,
        attention=_phi4_mini_attention(),
        tied=True,
        tokens=5e12,
    ),
}
