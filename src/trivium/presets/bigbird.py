"""BigBird: encoders of long texts, whose attention sees a few blocks."""

from __future__ import annotations

from trivium import spec
from trivium.presets.preset import Preset, encoder
from trivium.spec.mixers.block_sparse_attention import BlockSparseAttention


def _bigbird(num_layers: int, d_model: int, block_size: int = 64) -> spec.ModelSpec:
    """BERT for 4,096 tokens; every layer draws random blocks of its own."""
    norm = spec.LayerNorm(eps=1e-12)
    mixer = BlockSparseAttention(
        num_heads=d_model // 64, head_dim=64, block_size=block_size, num_random=3
    )
    return encoder(
        num_layers,
        d_model,
        vocab_size=50_358,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=4096), num_token_types=2, norm=norm
        ),
        mixer=tuple(mixer.replace(seed=layer) for layer in range(num_layers)),
        activation="gelu_tanh",
        norm=norm,
        heads=(spec.MLMHead(dense=spec.Dense(activation="gelu_tanh", norm=True)),),
    )


_PAPER = "Zaheer et al. 2020 (BigBird)"

# Learning rate and batch of 256 rows: appendix E.1. There a RoBERTa is trained on; here weights
# are random.
PRESETS: dict[str, Preset] = {
    "bigbird-tiny": Preset(_bigbird(2, 128, 16), f"after {_PAPER}", 4096),
    "bigbird-mini": Preset(_bigbird(4, 256, 16), f"after {_PAPER}", 4096),
    "bigbird-base": Preset(_bigbird(12, 768), _PAPER, 4096, lr=1e-4, batch=256 * 4096),
    "bigbird-large": Preset(_bigbird(24, 1024), _PAPER, 4096),
}
