"""PaLM: decoders with parallel blocks and multi-query attention."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import FanIn
from trivium.nn.blocks import ParallelLayers
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, decoder, swiglu_spec


def _palm(
    num_layers: int, d_model: int, num_heads: int, head_dim: int = 256, **published: float
) -> Preset:
    """Return a PaLM preset: a decoder with multi-query attention, SwiGLU and no biases.

    Attention and feed-forward network run in parallel and share one norm. The architecture is from
    section 2. The logits of the tied head are divided by sqrt(d_model), because token embeddings
    are initialized with standard deviation 1 (section 5).
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=256_000,
        mixer=Attention(
            num_heads=num_heads, head_dim=head_dim, num_kv_heads=1, bias=False, positions=Rotary()
        ),
        feed_forward=swiglu_spec(4 * d_model),
        norm=LayerNorm(bias=False),
        block=ParallelLayers(norms="shared"),
        head=LMHead(tied=True, scale=d_model**-0.5),
        initialization=FanIn(),
    )
    return Preset(model, "Chowdhery et al. 2022 (PaLM)", 2048, **published)


PRESETS: dict[str, Preset] = {
    "palm-tiny": _palm(2, 128, 2, 64),
    "palm-mini": _palm(4, 256, 4, 64),
    # Tables 1 and 21. The batch size doubles once or twice; no learning rate for Adam is published.
    "palm-8b": _palm(32, 4096, 16, tokens=780e9),
    "palm-62b": _palm(64, 8192, 32, tokens=795e9),
    "palm-540b": _palm(118, 18_432, 48, tokens=780e9),
}
