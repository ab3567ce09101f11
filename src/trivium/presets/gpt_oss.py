"""gpt-oss: decoders with attention sinks, alternating windows and experts with clamped SwiGLU."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.nn.activations import Swish
from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import RMSNorm
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary, YarnScaling
from trivium.presets.preset import Preset, decoder

_FULL = Attention(
    num_heads=64,
    head_dim=64,
    num_kv_heads=8,
    sinks=True,
    positions=Rotary(
        base=150_000.0, scaling=YarnScaling(factor=32.0, original_max_length=4096, truncate=False)
    ),
)
_EXPERT = MLP(
    d_ff=2880, activation=Swish(beta=1.702), gated=True, bias=True, clamp=7.0, up_offset=1
)


def _gpt_oss(num_layers: int, num_experts: int) -> Preset:
    """Return a gpt-oss preset. The auxiliary loss coefficient is that of the released models."""
    model = decoder(
        num_layers,
        2880,
        vocab_size=201_088,
        mixer=(_FULL.replace(pattern=Sliding(window=127)), _FULL),
        feed_forward=Experts(
            num_experts=num_experts, top_k=4, expert=_EXPERT, router_bias=True, aux_loss_coef=0.9
        ),
        norm=RMSNorm(eps=1e-5),
        head=LMHead(tied=False),
    )
    return Preset(model, "OpenAI 2025 (gpt-oss model card)", 131_072)


PRESETS: dict[str, Preset] = {"gpt-oss-20b": _gpt_oss(24, 32), "gpt-oss-120b": _gpt_oss(36, 128)}
