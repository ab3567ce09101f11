"""BLOOM: decoders with ALiBi and a norm after the token embeddings."""

from __future__ import annotations

from trivium.models.initialization import Normal
from trivium.models.stack import Embedding
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.alibi import ALiBi
from trivium.presets.preset import Preset, attention, decoder

# sqrt(1 / (3 d_model)) for the largest size; BigScience's training scripts use it for all sizes.
_INIT = Normal(std=0.0048, embedding_std=0.0048, residual_init="scaled")


def _bloom(num_layers: int, d_model: int, num_heads: int, **published: float) -> Preset:
    """Return a BLOOM preset: a decoder with ALiBi and a norm after the token embeddings.

    The vocabulary size of 250,880 is the tokenizer's 250,680 tokens plus unused entries.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=250_880,
        embedding=Embedding(norm=LayerNorm()),
        mixer=attention(d_model, num_heads, positions=ALiBi()),
        dropout=0.1,  # Megatron's default, which the training scripts keep; 0 in the release
        initialization=_INIT,
    )
    return Preset(model, "Le Scao et al. 2022 (BLOOM)", 2048, **published)


PRESETS: dict[str, Preset] = {
    "bloom-tiny": _bloom(2, 128, 2),
    "bloom-mini": _bloom(4, 256, 4),
    "bloom-560m": _bloom(24, 1024, 16, tokens=341e9),
    "bloom-1.1b": _bloom(24, 1536, 16, tokens=341e9),
    "bloom-1.7b": _bloom(24, 2048, 16, tokens=341e9),
    "bloom-3b": _bloom(30, 2560, 32, tokens=341e9),
    "bloom-7.1b": _bloom(30, 4096, 32, tokens=341e9),
    "bloom-176b": _bloom(70, 14_336, 112, tokens=366e9),
}
