"""RWKV, version 4: decoders with time mixing and channel mixing instead of attention."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal
from trivium.models.stack import Embedding
from trivium.nn.feed_forwards.channel_mixing import ChannelMixing
from trivium.nn.mixers.time_mixing import TimeMixing
from trivium.nn.norm import LayerNorm
from trivium.presets.preset import Preset, decoder


def _rwkv(num_layers: int, d_model: int, tokens: float | None = None) -> Preset:
    """Return an RWKV-4 preset: a decoder of time-mixing and channel-mixing layers.

    It has a norm after the token embeddings, no position embeddings, and an untied output
    projection. Token embeddings are initialized with a small standard deviation, 1e-4.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=50_277,
        embedding=Embedding(norm=LayerNorm()),
        mixer=TimeMixing(d_inner=d_model),
        feed_forward=ChannelMixing(d_ff=4 * d_model),
        head=LMHead(tied=False),
        initialization=Normal(embedding_std=1e-4),
    )
    return Preset(model, "Peng et al. 2023 (RWKV)", 1024, tokens)


PRESETS: dict[str, Preset] = {
    "rwkv-tiny": _rwkv(2, 128),
    "rwkv-mini": _rwkv(4, 256),
    "rwkv-169m": _rwkv(12, 768, 330e9),
    "rwkv-430m": _rwkv(24, 1024, 330e9),
    "rwkv-1.5b": _rwkv(24, 2048, 330e9),
    "rwkv-3b": _rwkv(32, 2560, 330e9),
    "rwkv-7b": _rwkv(32, 4096, 330e9),
    "rwkv-14b": _rwkv(40, 5120, 330e9),
}
