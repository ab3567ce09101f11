"""DeepSeek-V2 and DeepSeek-V3: decoders with latent attention and mixtures of experts."""

from __future__ import annotations

from functools import partial
from typing import Any

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal
from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.mixers.latent_attention import LatentAttention
from trivium.nn.norm import RMSNorm
from trivium.nn.positions.rotary import Rotary, YarnScaling
from trivium.presets.preset import Preset, decoder, swiglu_spec

_INIT = Normal(std=0.006, embedding_std=0.006)


def _mla_spec(
    heads: int, width: int = 128, rank: int = 512, query_rank: int | None = 1536, m: float = 0.707
) -> LatentAttention:
    """Return the spec of multi-head latent attention (MLA) with YaRN, as in the released models."""
    scaling = YarnScaling(factor=40, original_max_length=4096, mscale=m, mscale_all_dim=m)
    return LatentAttention(
        num_heads=heads,
        head_dim=width,
        rotary_dim=width // 2,
        value_dim=width,
        kv_rank=rank,
        query_rank=query_rank,
        positions=Rotary(layout="interleaved", scaling=scaling),
    )


def _experts_spec(d_ff: int, count: int, top_k: int, num_shared: int = 2, **router: Any) -> Experts:
    """Return the spec of a mixture of `count` experts; each token uses `top_k`.

    `num_shared` shared experts are used by all tokens. The coefficient of the auxiliary loss is
    that of the released models.
    """
    router = {"num_experts": count, "top_k": top_k, "aux_loss_coef": 0.001, **router}
    return Experts(expert=swiglu_spec(d_ff), shared=swiglu_spec(num_shared * d_ff), **router)


def _v2(
    num_layers: int,
    d_model: int,
    d_ff: int,
    attention: LatentAttention,
    experts: Experts,
    *,
    num_dense: int = 1,
    vocab_size: int = 102_400,
    paper: str = "DeepSeek-AI 2024a (DeepSeek-V2)",
    context: int = 32_768,
    **published: float,
) -> Preset:
    """Return a DeepSeek-V2 or DeepSeek-V3 preset with the given attention and experts.

    Instead of experts, the first `num_dense` layers have a dense SwiGLU network of width `d_ff`.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        mixer=attention,
        feed_forward=experts,
        norm=RMSNorm(),
        head=LMHead(tied=False),
        initialization=_INIT,
    )
    stack = model.stacks[0]
    first = (stack.layers[0].replace(feed_forward=swiglu_spec(d_ff)),) * num_dense
    model = model.replace(decoder=stack.replace(first_layers=first))
    return Preset(model, paper, context, **published)


_v2_experts = partial(_experts_spec, normalized=False)
_v3 = partial(_v2, vocab_size=129_280, paper="DeepSeek-AI 2024b (DeepSeek-V3)", context=131_072)
_v3_experts = partial(_experts_spec, num_shared=1, scores="sigmoid", corrected=True, scale=2.5)
_FEW_GROUPS = {"num_groups": 4, "top_k_groups": 2, "scores_per_group": 2}
_MANY_GROUPS = {"num_groups": 8, "top_k_groups": 4, "scores_per_group": 2}
_V2 = _v2_experts(1536, 160, 6, num_groups=8, top_k_groups=3, scale=16.0)
_V3 = _v3_experts(2048, 256, 8, **_MANY_GROUPS)

PRESETS: dict[str, Preset] = {
    "deepseek-v2-tiny": _v2(2, 128, 344, _mla_spec(4, 16, 32, 48), _v2_experts(64, 8, 2)),
    "deepseek-v2-mini": _v2(4, 256, 688, _mla_spec(4, 32, 64, 96), _v2_experts(128, 8, 2)),
    "deepseek-v2-lite": _v2(
        27, 2048, 10_944, _mla_spec(16, query_rank=None), _v2_experts(1408, 64, 6), tokens=5.7e12
    ),
    "deepseek-v2": _v2(60, 5120, 12_288, _mla_spec(128), _V2, tokens=8.1e12),
    "deepseek-v3-tiny": _v3(
        2, 128, 344, _mla_spec(4, 16, 32, 48, 1.0), _v3_experts(64, 8, 2, **_FEW_GROUPS)
    ),
    "deepseek-v3-mini": _v3(
        4, 256, 688, _mla_spec(4, 32, 64, 96, 1.0), _v3_experts(128, 8, 2, **_FEW_GROUPS)
    ),
    "deepseek-v3": _v3(61, 7168, 18_432, _mla_spec(128, m=1.0), _V3, num_dense=3, tokens=14.8e12),
}
