"""SmolLM3 and OLMo 3: LLaMA-like decoders in which every fourth layer has other attention."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal
from trivium.nn.norm import RMSNorm
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary, YarnScaling
from trivium.presets.preset import Preset, attention, decoder, swiglu_spec


def _smollm3() -> Preset:
    """Return the preset of SmolLM3 3B, whose every fourth layer has no positions (NoPE).

    The RoPE base is that after training on texts of 65,536 tokens.
    """
    rotary = attention(2048, 16, num_kv_heads=4, bias=False, positions=Rotary(base=5e6))
    model = decoder(
        36,
        2048,
        vocab_size=128_256,
        mixer=(rotary, rotary, rotary, rotary.replace(positions=None)),
        feed_forward=swiglu_spec(11_008),
        norm=RMSNorm(eps=1e-6),
    )
    return Preset(model, "Bakouch et al. 2025 (SmolLM3)", 65_536, tokens=11.2e12)


def _olmo3(
    num_layers: int, d_model: int, num_heads: int, d_ff: int, num_kv_heads: int | None = None
) -> Preset:
    """Return a preset of OLMo 3: OLMo 2 with a window of 4096 tokens in three of four layers.

    The layers with full attention have YaRN for 65,536 tokens.
    """
    rotary = Rotary(base=5e5)
    sliding = attention(
        d_model,
        num_heads,
        num_kv_heads=num_kv_heads,
        bias=False,
        qk_norm=RMSNorm(eps=1e-6),
        qk_norm_over="all-heads",
        pattern=Sliding(window=4095),
        positions=rotary,
    )
    yarn = YarnScaling(factor=8.0, original_max_length=8192)
    full = sliding.replace(pattern=None, positions=rotary.replace(scaling=yarn))
    model = decoder(
        num_layers,
        d_model,
        vocab_size=100_278,
        mixer=(sliding, sliding, sliding, full),
        feed_forward=swiglu_spec(d_ff),
        norm=RMSNorm(eps=1e-6),
        norm_placement="post-sublayer",
        head=LMHead(tied=False),
        initialization=Normal(),
    )
    return Preset(model, "OLMo Team 2025 (OLMo 3)", 65_536)


PRESETS: dict[str, Preset] = {
    "smollm3-3b": _smollm3(),
    "olmo3-7b": _olmo3(32, 4096, 32, 11_008),
    "olmo3-32b": _olmo3(64, 5120, 40, 27_648, num_kv_heads=8),
}
