"""Selective state-space models: Mamba 1 and 2, and a small hybrid of Mamba and attention."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.nn.mixers.mamba import Mamba
from trivium.nn.mixers.mamba2 import Mamba2
from trivium.nn.norm import RMSNorm
from trivium.presets.preset import Preset, attention, decoder, swiglu_spec

_GU_DAO = "Gu and Dao 2023 (Mamba)"


def _mixer_spec(d_model: int) -> Mamba:
    """Return the spec of a Mamba mixer: d_inner = 2 d_model, dt_rank = d_model / 16."""
    return Mamba(d_inner=2 * d_model, dt_rank=d_model // 16)


def _mamba(num_layers: int, d_model: int, *, tokens: float | None = None) -> Preset:
    """Return a Mamba preset, without attention, positions or feed-forward networks.

    The initialization differs from the authors' code in two points. Matrices are initialized from a
    normal distribution instead of a uniform distribution in +-1 / sqrt(fan-in). Output matrices of
    the residual branches are divided by sqrt(2 num_layers) instead of sqrt(num_layers).

    The vocabulary consists of GPT-NeoX's 50,277 tokens, padded to a multiple of 8. Sizes and
    numbers of training tokens are those of the models that the authors released.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=50_280,
        mixer=_mixer_spec(d_model),
        feed_forward=None,
        norm=RMSNorm(eps=1e-5),
    )
    return Preset(model, _GU_DAO, 2048, tokens)


def _mamba2(num_layers: int, d_model: int, *, tokens: float | None = None) -> Preset:
    """Return a Mamba 2 preset: heads of 64 channels, and states of 128 numbers per channel.

    The initialization differs from the authors' code as that of `_mamba`. The vocabulary consists
    of GPT-NeoX's 50,277 tokens, padded to a multiple of 16. Sizes and numbers of training tokens
    are those of the models that the authors released.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=50_288,
        mixer=Mamba2(num_heads=2 * d_model // 64, head_dim=64),
        feed_forward=None,
        norm=RMSNorm(eps=1e-5),
    )
    return Preset(model, "Dao and Gu 2024 (Mamba 2)", 2048, tokens)


def _jamba(d_model: int, num_heads: int) -> Preset:
    """Return a hybrid preset of eight layers: the fifth layer has attention, the others have Mamba.

    There are no position embeddings. Unlike Jamba, the model has no mixture of experts in every
    second layer and no norms inside the Mamba mixers. The sizes are our own.
    """
    full = attention(d_model, num_heads, num_kv_heads=num_heads // 4, bias=False)
    mamba = _mixer_spec(d_model)
    model = decoder(
        8,
        d_model,
        vocab_size=32_000,
        mixer=(*(mamba,) * 4, full, *(mamba,) * 3),
        feed_forward=swiglu_spec(7 * d_model // 2),
        norm=RMSNorm(eps=1e-6),
        head=LMHead(tied=False),
    )
    return Preset(model, "after Lieber et al. 2024 (Jamba)", None)


PRESETS: dict[str, Preset] = {
    "mamba-tiny": _mamba(2, 128),
    "mamba-mini": _mamba(4, 256),
    "mamba-130m": _mamba(24, 768, tokens=300e9),
    "mamba-370m": _mamba(48, 1024, tokens=300e9),
    "mamba-790m": _mamba(48, 1536, tokens=300e9),
    "mamba-1.4b": _mamba(48, 2048, tokens=300e9),
    "mamba-2.8b": _mamba(64, 2560, tokens=300e9),
    "mamba2-130m": _mamba2(24, 768, tokens=300e9),
    "mamba2-370m": _mamba2(48, 1024, tokens=300e9),
    "mamba2-780m": _mamba2(48, 1536, tokens=300e9),
    "mamba2-1.3b": _mamba2(48, 2048, tokens=300e9),
    "mamba2-2.7b": _mamba2(64, 2560, tokens=300e9),
    "jamba-mini": _jamba(256, 4),
}
