"""ChatGLM and GLM-4: the first generation fills in blanks as GLM, the later ones do not.

Team GLM 2024 name the parts of these models. The sizes and formulas are those of the released
configurations and code.
"""

from __future__ import annotations

from functools import partial

from trivium.models.stack import Embedding
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.rotary import Rotary
from trivium.nn.positions.two_dimensional_rotary import TwoDimensionalRotary
from trivium.presets.decoders import ROTARY_ATTENTION, llama
from trivium.presets.preset import Preset, attention, decoder

_PAPER = "Team GLM 2024 (ChatGLM)"
_EPS = 1e-5


def _chatglm(
    num_layers: int, d_model: int, num_heads: int, *, paper: str = _PAPER, **published: float
) -> Preset:
    """Return a preset of ChatGLM's first generation.

    Its residual connection is norm(sqrt(2 L) x + f(x)) for L layers, and x is the normalised
    embedding in the first layer. Here it is norm(x + (2 L)^-0.5 f(x)) with the epsilon of the norm
    divided by 2 L, which is equal.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=130_528,
        embedding=Embedding(norm=LayerNorm(eps=_EPS)),
        mixer=attention(d_model, num_heads, positions=TwoDimensionalRotary()),
        norm=LayerNorm(eps=_EPS / (2 * num_layers)),
        norm_placement="post",
        residual_multiplier=(2 * num_layers) ** -0.5,
    )
    return Preset(model, paper, 2048, **published)


# As LLaMA with biases of queries, keys and values. RoPE rotates one half of every head.
_HALF_ROTARY = Rotary(layout="interleaved", partial_rotary_factor=0.5)
_chatglm2 = partial(
    llama,
    paper=_PAPER,
    context=32_768,
    num_kv_heads=2,
    vocab_size=65_024,
    attention=ROTARY_ATTENTION.replace(bias=True, output_bias=False, positions=_HALF_ROTARY),
)

PRESETS: dict[str, Preset] = {
    "chatglm-tiny": _chatglm(2, 128, 2, paper=f"after {_PAPER}"),
    "chatglm-mini": _chatglm(4, 256, 4, paper=f"after {_PAPER}"),
    "chatglm-6b": _chatglm(28, 4096, 32, tokens=1e12),
    "chatglm2-tiny": _chatglm2(2, 128, 4, 432),
    "chatglm2-mini": _chatglm2(4, 256, 4, 856),
    "chatglm2-6b": _chatglm2(28, 4096, 32, 13_696, tokens=1.4e12),
    "chatglm3-6b": _chatglm2(28, 4096, 32, 13_696, context=8192),
    # The epsilon is that of the released configuration, 1e-5 / 64.
    "glm-4-9b": _chatglm2(
        40, 4096, 32, 13_696, context=8192, vocab_size=151_552, eps=1.5625e-7, tokens=10e12
    ),
}
