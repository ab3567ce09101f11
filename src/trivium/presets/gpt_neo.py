"""GPT-Neo and GPT-J: EleutherAI's decoders before GPT-NeoX, trained on the Pile.

The numbers of training tokens are those of the model cards.
"""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.stack import Embedding
from trivium.nn.blocks import ParallelLayers
from trivium.nn.patterns import Sliding
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, attention, decoder


def _gpt_neo(num_layers: int, d_model: int, num_heads: int, *, tokens: float) -> Preset:
    """Return a preset of GPT-Neo: GPT-3 with attention scores that are not scaled.

    Layers with full attention and with a sliding window of 256 tokens alternate.
    """
    full = attention(d_model, num_heads, bias=False, output_bias=True, scale=1.0)
    model = decoder(
        num_layers,
        d_model,
        vocab_size=50_257,
        embedding=Embedding(positions=Learned(max_length=2048)),
        mixer=(full, full.replace(pattern=Sliding(window=255))),
    )
    return Preset(model, "Black et al. 2021 (GPT-Neo)", 2048, tokens=tokens)


# RoPE rotates 64 of the 256 dimensions of a head.
_GPT_J_6B = decoder(
    28,
    4096,
    vocab_size=50_400,
    mixer=attention(
        4096, 16, bias=False, positions=Rotary(layout="interleaved", partial_rotary_factor=0.25)
    ),
    block=ParallelLayers(norms="shared"),
    head=LMHead(tied=False, bias=True),
)

PRESETS: dict[str, Preset] = {
    "gpt-neo-125m": _gpt_neo(12, 768, 12, tokens=300e9),
    "gpt-neo-1.3b": _gpt_neo(24, 2048, 16, tokens=380e9),
    "gpt-neo-2.7b": _gpt_neo(32, 2560, 20, tokens=420e9),
    "gpt-j-6b": Preset(_GPT_J_6B, "Wang and Komatsuzaki 2021 (GPT-J)", 2048, tokens=402e9),
}
