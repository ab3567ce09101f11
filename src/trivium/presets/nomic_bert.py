"""NomicBERT: BERT with RoPE and gated feed-forward networks, without biases in its layers."""

from __future__ import annotations

from trivium.models.heads import Dense
from trivium.models.heads.vocabulary import MLMHead
from trivium.models.stack import Embedding
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, attention, encoder

_NORM = LayerNorm(eps=1e-12)
PRESETS: dict[str, Preset] = {
    "nomic-bert": Preset(
        encoder(
            12,
            768,
            vocab_size=30_528,
            embedding=Embedding(num_token_types=2, norm=_NORM),
            mixer=attention(768, 12, bias=False, positions=Rotary(base=1000.0)),
            feed_forward=MLP(d_ff=3072, activation="silu", gated=True, bias=False),
            norm=_NORM,
            dropout=0.0,
            heads=(MLMHead(dense=Dense(activation="silu", norm=True)),),
        ),
        "Nussbaum et al. 2024 (Nomic Embed)",
        2048,
    )
}
