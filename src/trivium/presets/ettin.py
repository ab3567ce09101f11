"""The decoders of Ettin: ModernBERT with causal attention."""

from __future__ import annotations

from trivium.models.heads import Dense
from trivium.models.heads.vocabulary import LMHead
from trivium.models.stack import Embedding, Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.norm import LayerNorm
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import GPT2_INIT, Preset, attention

_NORM = LayerNorm(bias=False)
_DENSE = Dense(activation="gelu", bias=False, norm=True)


def _ettin_decoder(num_layers: int, d_model: int, d_ff: int) -> Preset:
    """Return an Ettin decoder preset. Two of every three layers have sliding-window attention.

    The RoPE base is that of the last phases of training, with texts of up to 7,999 tokens.
    """
    full = attention(d_model, d_model // 64, bias=False, positions=Rotary(base=160_000.0))
    local = full.replace(pattern=Sliding(window=63))  # 64 positions with the token itself
    model = TransformerSpec(
        vocab_size=50_368,
        d_model=d_model,
        embedding=Embedding(norm=_NORM),
        decoder=Stack.from_mixers(
            num_layers=num_layers,
            mixer=(full, local, local),
            feed_forward=MLP(d_ff=d_ff, activation="gelu", gated=True, bias=False),
            norm=_NORM,
            norm_placement="pre",
            first_norm=False,
        ),
        heads=(
            LMHead(tied=True, bias=True, dense=Dense(activation="gelu", bias=False, norm=True)),
        ),
        initialization=GPT2_INIT,
    )
    return Preset(model, "Weller et al. 2025 (Ettin)", 7999, 2e12)


PRESETS: dict[str, Preset] = {
    "ettin-decoder-17m": _ettin_decoder(7, 256, 384),
    "ettin-decoder-32m": _ettin_decoder(10, 384, 576),
    "ettin-decoder-68m": _ettin_decoder(19, 512, 768),
    "ettin-decoder-150m": _ettin_decoder(22, 768, 1152),
    "ettin-decoder-400m": _ettin_decoder(28, 1024, 2624),
    "ettin-decoder-1b": _ettin_decoder(28, 1792, 3840),
}
