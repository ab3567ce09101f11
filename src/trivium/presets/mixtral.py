"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from functools import partial

from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.positions.rotary import Rotary
from trivium.presets.decoders import ROTARY_ATTENTION, llama
from trivium.presets.preset import Preset, swiglu_spec


def _mixtral(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    *,
    num_kv_heads: int = 8,
    aux_loss_coef: float = 0.02,
    paper: str = "Jiang et al. 2024 (Mixtral of experts)",
    context: int = 32_768,
) -> Preset:
    """Return a Mixtral preset: a mixture of eight experts; each token uses two.

    It is otherwise like Mistral, but has full instead of sliding-window attention. The default of
    `aux_loss_coef` is from the released configuration, because the papers do not give it.
    """
    return llama(
        num_layers,
        d_model,
        num_heads,
        d_ff,
        paper=paper,
        context=context,
        num_kv_heads=num_kv_heads,
        attention=ROTARY_ATTENTION.replace(positions=Rotary(base=1e6)),
        feed_forward=Experts(num_experts=8, expert=swiglu_spec(d_ff), aux_loss_coef=aux_loss_coef),
    )


_small = partial(_mixtral, num_kv_heads=2)

PRESETS: dict[str, Preset] = {
    "mixtral-tiny": _small(2, 128, 4, 224),
    "mixtral-mini": _small(4, 256, 4, 448),
    "mixtral-8x7b": _mixtral(32, 4096, 32, 14_336),
    "mixtral-8x22b": _mixtral(
        56,
        6144,
        48,
        16_384,
        aux_loss_coef=0.001,
        paper="Mistral AI 2024 (Mixtral 8x22B, release)",
        context=65_536,
    ),
}
