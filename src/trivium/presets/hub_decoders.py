"""Decoders between GPT and LLaMA: OLMo, StarCoder2, StableLM, Phi and Nemotron-4.

All have RoPE. Their sizes are those of the papers, the model cards and the released configurations.
OLMo is published with an initialization that Trivium does not have; here it has that of GPT-2.
"""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal
from trivium.nn.blocks import ParallelLayers
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.norm import LayerNorm
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, attention, decoder, swiglu_spec

_UNTIED = LMHead(tied=False)


def _olmo(
    num_layers: int, d_model: int, num_heads: int, d_ff: int, *, tied: bool, tokens: float
) -> Preset:
    """Return a preset of OLMo: SwiGLU, no biases, and LayerNorm without weights."""
    model = decoder(
        num_layers,
        d_model,
        vocab_size=50_304,
        mixer=attention(d_model, num_heads, bias=False, positions=Rotary()),
        feed_forward=swiglu_spec(d_ff),
        norm=LayerNorm(weight=False, bias=False),
        head=LMHead(tied=tied),
    )
    return Preset(model, "Groeneveld et al. 2024 (OLMo)", 2048, tokens=tokens)


def _starcoder2(
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    base: float,
    *,
    std: float = 0.018042,
    tied: bool = True,
    tokens: float | None = None,
) -> Preset:
    """Return a preset of StarCoder2: LayerNorm, biases and a sliding window of 4096 tokens."""
    mixer = attention(
        d_model,
        num_heads,
        num_kv_heads=num_kv_heads,
        positions=Rotary(base=base),
        pattern=Sliding(window=4095),
    )
    model = decoder(
        num_layers,
        d_model,
        vocab_size=49_152,
        mixer=mixer,
        head=LMHead(tied=tied),
        initialization=Normal(std=std, residual_init="scaled"),
    )
    return Preset(model, "Lozhkov et al. 2024 (StarCoder2)", 16_384, tokens=tokens)


def _phi(
    num_layers: int,
    d_model: int,
    *,
    paper: str = "Gunasekar et al. 2023 (phi-1)",
    rotary_part: float = 0.5,
    tokens: float | None = None,
) -> Preset:
    """Return a preset of Phi with 32 heads: parallel blocks, biases and partial RoPE."""
    model = decoder(
        num_layers,
        d_model,
        vocab_size=51_200,
        mixer=attention(d_model, 32, positions=Rotary(partial_rotary_factor=rotary_part)),
        block=ParallelLayers(),
        head=LMHead(tied=False, bias=True),
    )
    return Preset(model, paper, 2048, tokens=tokens)


_STABLELM_3B = decoder(
    32,
    2560,
    vocab_size=50_304,
    mixer=attention(2560, 32, bias=False, positions=Rotary(partial_rotary_factor=0.25)),
    feed_forward=swiglu_spec(6912),
    head=_UNTIED,
)
_NEMOTRON4_15B = decoder(
    32,
    6144,
    vocab_size=256_000,
    mixer=attention(
        6144, 48, num_kv_heads=8, bias=False, positions=Rotary(partial_rotary_factor=0.5)
    ),
    feed_forward=MLP(d_ff=24_576, activation="relu2", bias=False),
    norm=LayerNorm(offset=1),
    head=_UNTIED,
    initialization=Normal(std=0.0134, residual_init="scaled"),
)

PRESETS: dict[str, Preset] = {
    "olmo-1b": _olmo(16, 2048, 16, 8192, tied=True, tokens=3e12),
    "olmo-7b": _olmo(32, 4096, 32, 11_008, tied=False, tokens=2.5e12),
    "starcoder2-3b": _starcoder2(30, 3072, 24, 2, 999_999.4420358813, tokens=3.3e12),
    "starcoder2-7b": _starcoder2(32, 4608, 36, 4, 1e6),
    "starcoder2-15b": _starcoder2(40, 6144, 48, 4, 1e5, std=0.01275, tied=False),
    # 1 trillion tokens, read four times.
    "stablelm-3b": Preset(
        _STABLELM_3B, "Tow et al. 2023 (StableLM-3B-4E1T)", context=4096, tokens=4e12
    ),
    "phi-1": _phi(24, 2048),
    "phi-1.5": _phi(24, 2048, paper="Li et al. 2023 (phi-1.5)"),
    "phi-2": _phi(
        32, 2560, paper="Microsoft 2023 (Phi-2, model card)", rotary_part=0.4, tokens=1.4e12
    ),
    "nemotron-4-15b": Preset(
        _NEMOTRON4_15B, "Parmar et al. 2024 (Nemotron-4 15B)", context=4096, tokens=8e12
    ),
}
