"""GLM: decoders that fill in blanks, with bidirectional attention within the given text."""

from __future__ import annotations

from trivium.models.stack import Embedding
from trivium.nn.positions.two_dimensional import TwoDimensional
from trivium.presets.preset import Preset, attention, decoder


def _glm(
    num_layers: int, d_model: int, *, paper: str = "Du et al. 2022 (GLM)", **published: float
) -> Preset:
    """Return a GLM preset: a decoder with two-dimensional positions for filling in blanks.

    Its vocabulary size is that of uncased BERT, padded to a multiple of 128.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=30_592,
        embedding=Embedding(positions=TwoDimensional(max_length=512)),
        mixer=attention(d_model, d_model // 64),
        dropout=0.1,
    )
    return Preset(model, paper, 512, **published)


_BATCH = 1024.0 * 512  # tokens per step (presets/recipes/glm.toml)

PRESETS: dict[str, Preset] = {
    "glm-tiny": _glm(2, 128, paper="after Du et al. 2022 (GLM)"),
    "glm-mini": _glm(4, 256, paper="after Du et al. 2022 (GLM)"),
    "glm-base": _glm(12, 768, tokens=1.5e5 * _BATCH),
    "glm-large": _glm(24, 1024, tokens=2e5 * _BATCH),
}
