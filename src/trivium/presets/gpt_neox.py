"""GPT-NeoX and Pythia: decoders with parallel blocks and partial RoPE."""

from __future__ import annotations

from functools import partial

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Small
from trivium.nn.activations import Activation
from trivium.nn.blocks import ParallelLayers
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, attention, decoder


def _gpt_neox(
    num_layers: int,
    d_model: int,
    num_heads: int,
    *,
    paper: str = "Biderman et al. 2023 (Pythia)",
    vocab_size: int = 50_304,
    activation: Activation = "gelu",
    **published: float,
) -> Preset:
    """Return a preset of GPT-NeoX or Pythia, with parallel blocks and an untied output projection.

    RoPE is applied to a quarter of the features of each head.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        mixer=attention(d_model, num_heads, positions=Rotary(partial_rotary_factor=0.25)),
        feed_forward=MLP(d_ff=4 * d_model, activation=activation),
        block=ParallelLayers(norms="separate"),
        head=LMHead(tied=False),
        initialization=Small(),
    )
    return Preset(model, paper, 2048, **published)


# From table 1 and the released configurations: 143 thousand steps.
_pythia = partial(_gpt_neox, tokens=300e9)

PRESETS: dict[str, Preset] = {
    "gpt-neox-20b": _gpt_neox(
        44,
        6144,
        64,
        paper="Black et al. 2022 (GPT-NeoX-20B)",
        vocab_size=50_432,
        activation="gelu_tanh",  # as in the released configuration; the paper prints 0.97E-5
        tokens=150e3 * 1538 * 2048,
    ),
    "pythia-tiny": _gpt_neox(2, 128, 2),
    "pythia-mini": _gpt_neox(4, 256, 4),
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    # Training with more processes padded the vocabulary further.
    "pythia-6.9b": _pythia(32, 4096, 32, vocab_size=50_432),
    "pythia-12b": _pythia(36, 5120, 40, vocab_size=50_688),
}
