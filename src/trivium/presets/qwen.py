"""Qwen2 and Qwen3: LLaMA with attention biases (Qwen2) or QK-norm (Qwen3); also with experts."""

from __future__ import annotations

from functools import partial

from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.norm import RMSNorm
from trivium.nn.positions.rotary import Rotary
from trivium.presets.decoders import ROTARY_ATTENTION, llama
from trivium.presets.preset import Preset, swiglu_spec

# LLaMA with biases (Qwen2) or query-key norms (Qwen3) in attention. As in the released models, the
# vocabulary size exceeds the number of tokens (151,646 in Qwen2, 151,669 in Qwen3).
_qwen = partial(llama, context=32_768, head_dim=128, vocab_size=151_936, eps=1e-6, tied=True)
_ATTENTION = ROTARY_ATTENTION.replace(positions=Rotary(base=1_000_000.0))
_qwen2 = partial(
    _qwen,
    paper="Yang et al. 2024 (Qwen2)",
    attention=_ATTENTION.replace(bias=True, output_bias=False),
)
_qwen3 = partial(
    _qwen, paper="Yang et al. 2025 (Qwen3)", attention=_ATTENTION.replace(qk_norm=RMSNorm())
)


def _experts(count: int, top_k: int, d_ff: int, shared_d_ff: int | None = None) -> Experts:
    """Return the spec of a mixture of `count` experts of width `d_ff`; each token uses `top_k`.

    With a shared expert (Qwen2), the weights of the chosen experts are not normalised. The
    coefficient of the auxiliary loss is that of the released models.
    """
    shared = None if shared_d_ff is None else swiglu_spec(shared_d_ff)
    return Experts(
        num_experts=count,
        top_k=top_k,
        expert=swiglu_spec(d_ff),
        shared=shared,
        shared_gate=shared is not None,
        normalized=shared is None,
        aux_loss_coef=0.001,
    )


_qwen2_moe = partial(_qwen2, tied=False)
_qwen3_moe = partial(_qwen3, num_kv_heads=4, tied=False, tokens=36e12)

PRESETS: dict[str, Preset] = {
    "qwen2-tiny": _qwen2(2, 128, 4, 344, num_kv_heads=2, head_dim=32),
    "qwen2-mini": _qwen2(4, 256, 4, 688, num_kv_heads=2, head_dim=64),
    "qwen2-0.5b": _qwen2(24, 896, 14, 4864, num_kv_heads=2, head_dim=64, tokens=12e12),
    "qwen2-1.5b": _qwen2(28, 1536, 12, 8960, num_kv_heads=2, tokens=7e12),
    "qwen2-7b": _qwen2(
        28, 3584, 28, 18_944, num_kv_heads=4, tied=False, vocab_size=152_064, tokens=7e12
    ),
    "qwen2-72b": _qwen2(
        80, 8192, 64, 29_568, num_kv_heads=8, tied=False, vocab_size=152_064, eps=1e-5, tokens=7e12
    ),
    "qwen1.5-moe-a2.7b": _qwen2_moe(
        24,
        2048,
        16,
        1408,
        paper="Qwen Team 2024 (Qwen1.5-MoE, release)",
        context=None,
        feed_forward=_experts(60, 4, 1408, 5632),
    ),
    "qwen2-57b-a14b": _qwen2_moe(
        28,
        3584,
        28,
        2560,
        num_kv_heads=4,
        tokens=4.5e12,
        feed_forward=_experts(64, 8, 2560, 20_480),
    ),
    "qwen3-tiny": _qwen3(2, 128, 4, 384, num_kv_heads=2, head_dim=32),
    "qwen3-mini": _qwen3(4, 256, 4, 768, num_kv_heads=2, head_dim=64),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072, num_kv_heads=8, tokens=36e12),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144, num_kv_heads=8, tokens=36e12),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728, num_kv_heads=8, tokens=36e12),
    "qwen3-8b": _qwen3(36, 4096, 32, 12_288, num_kv_heads=8, tied=False, tokens=36e12),
    "qwen3-14b": _qwen3(40, 5120, 40, 17_408, num_kv_heads=8, tied=False, tokens=36e12),
    "qwen3-32b": _qwen3(64, 5120, 64, 25_600, num_kv_heads=8, tied=False, tokens=36e12),
    "qwen3-30b-a3b": _qwen3_moe(48, 2048, 32, 768, feed_forward=_experts(128, 8, 768)),
    "qwen3-235b-a22b": _qwen3_moe(94, 4096, 64, 1536, feed_forward=_experts(128, 8, 1536)),
}
