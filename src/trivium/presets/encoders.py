"""Encoder-only models: BERT, DistilBERT, RoBERTa, MPNet, ALBERT, ELECTRA and ModernBERT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trivium.models.heads import Dense, Head
from trivium.models.heads.text import NSPHead
from trivium.models.heads.tokens import ReplacedTokenHead
from trivium.models.heads.vocabulary import MLMHead
from trivium.models.stack import Embedding, Factorised, Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.activations import Activation
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers import Mixer
from trivium.nn.norm import LayerNorm
from trivium.nn.patterns import Sliding
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.relative_bias import RelativeBias
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import GELU_MLM, GPT2_INIT, Preset, attention, encoder


def bert(
    num_layers: int,
    d_model: int,
    *,
    paper: str,
    heads: tuple[Head, ...],
    mixer: Mixer | tuple[Mixer, ...] | None = None,
    vocab_size: int = 30_522,
    max_length: int = 512,
    d_embedding: int | None = None,
    num_heads: int | None = None,
    num_layer_groups: int | None = None,
    num_token_types: int = 2,
    learned: Callable[..., Learned] = Learned,
    activation: Activation = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.1,
    **published: float,
) -> Preset:
    """Return a preset of BERT or a similar post-norm encoder with learned position embeddings.

    `mixer` replaces full attention, as in Linformer, Longformer and BigBird.
    """
    model = encoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        embedding=Embedding(
            factorised=Factorised(width=d_embedding) if d_embedding else None,
            positions=learned(max_length=max_length),
            num_token_types=num_token_types,
            norm=LayerNorm(eps=eps),
        ),
        num_layer_groups=num_layer_groups,
        mixer=mixer or attention(d_model, num_heads or d_model // 64),
        activation=activation,
        norm=LayerNorm(eps=eps),
        dropout=dropout,
        heads=heads,
    )
    return Preset(model, paper, max_length, **published)


def _modernbert(num_layers: int, d_model: int, d_ff: int, *, released: bool = True) -> Preset:
    """Return a ModernBERT preset. Two of every three layers have sliding-window attention.

    In the released sizes, a window contains 64 tokens per side, and layers with a window have a
    smaller RoPE base than layers with full attention. Our own sizes for short runs
    (`released=False`) have windows of 4 tokens per side, full attention in the last instead of the
    first of every three layers, and the same RoPE base in all layers. Their attention and MLM head
    have biases, because the initialization for short runs (`with_fast_initialization`) needs
    them.
    """
    plain = attention(d_model, d_model // 64, bias=not released)
    full = plain.replace(positions=Rotary(base=160_000.0 if released else 10_000.0))
    window = Sliding(window=64 if released else 4)
    local = plain.replace(positions=Rotary(), pattern=window)
    norm = LayerNorm(bias=False)
    model = TransformerSpec(
        vocab_size=50_368,
        d_model=d_model,
        embedding=Embedding(norm=norm),
        encoder=Stack.from_mixers(
            num_layers=num_layers,
            mixer=(full, local, local) if released else (local, local, full),
            feed_forward=MLP(d_ff=d_ff, activation="gelu", gated=True, bias=False),
            norm=norm,
            norm_placement="pre",
            first_norm=False,
        ),
        heads=(MLMHead(dense=Dense(activation="gelu", bias=not released, norm=True)),),
        initialization=GPT2_INIT,
    )
    if released:
        return Preset(model, "Warner et al. 2024 (ModernBERT)", 8192, 2e12)
    return Preset(model, "after Warner et al. 2024 (ModernBERT), at sizes for short runs", 8192)


_bert = partial(bert, paper="Devlin et al. 2018 (BERT)", heads=(GELU_MLM, NSPHead()))
_small_bert = partial(_bert, paper="Turc et al. 2019 (small BERTs)")
_released_bert = partial(_bert, paper="Devlin et al. 2018 (BERT, as released)")
roberta = partial(
    bert,
    paper="Liu et al. 2019 (RoBERTa)",
    heads=(GELU_MLM,),
    vocab_size=50_265,
    num_token_types=1,
    learned=partial(Learned, offset=2, counted="not-padding"),
    eps=1e-5,
)
_distilbert = partial(
    bert, 6, 768, paper="Sanh et al. 2019 (DistilBERT)", heads=(GELU_MLM,), num_token_types=0
)
_ROBERTA_TOKENS = 500e3 * 8192 * 512  # Liu et al. 2019, section 5: 500,000 steps
# ALBERT version 2 was trained without dropout.
_albert = partial(
    bert,
    paper="Lan et al. 2019 (ALBERT, version 2)",
    heads=(MLMHead(dense=Dense(activation="gelu_tanh", norm=True)), NSPHead()),
    vocab_size=30_000,
    d_embedding=128,
    num_layer_groups=1,
    activation="gelu_tanh",
    dropout=0.0,
)
# Generator and discriminator share token embeddings of the discriminator's embedding width.
_electra = partial(bert, paper="Clark et al. 2020 (ELECTRA)", heads=(ReplacedTokenHead(),))
_generator = partial(_electra, heads=(GELU_MLM,))

PRESETS: dict[str, Preset] = {
    "bert-tiny": _small_bert(2, 128),
    "bert-mini": _small_bert(4, 256),
    "bert-small": _small_bert(4, 512),
    "bert-medium": _small_bert(8, 512),
    "bert-base": _bert(12, 768),
    "bert-large": _bert(24, 1024),
    "bert-base-cased": _released_bert(12, 768, vocab_size=28_996),
    "bert-large-cased": _released_bert(24, 1024, vocab_size=28_996),
    "bert-base-multilingual-uncased": _released_bert(12, 768, vocab_size=105_879),
    "bert-base-multilingual-cased": _released_bert(12, 768, vocab_size=119_547),
    "bert-base-chinese": _released_bert(12, 768, vocab_size=21_128),
    "distilbert-base": _distilbert(),
    "distilbert-base-cased": _distilbert(vocab_size=28_996),
    "distilbert-base-multilingual-cased": _distilbert(vocab_size=119_547),
    "roberta-tiny": roberta(2, 128),
    "roberta-mini": roberta(4, 256),
    "roberta-base": roberta(12, 768, tokens=_ROBERTA_TOKENS),
    "roberta-large": roberta(24, 1024, tokens=_ROBERTA_TOKENS),
    "mpnet-base": roberta(
        12,
        768,
        paper="Song et al. 2020 (MPNet)",
        vocab_size=30_527,
        num_token_types=0,
        mixer=attention(768, 12, positions=RelativeBias()),
    ),
    "albert-tiny": _albert(2, 128),
    "albert-mini": _albert(4, 256),
    "albert-base": _albert(12, 768),
    "albert-large": _albert(24, 1024),
    "albert-xlarge": _albert(24, 2048, num_heads=16),
    "albert-xxlarge": _albert(12, 4096),
    "electra-tiny": _electra(2, 128),
    "electra-tiny-generator": _generator(2, 64, d_embedding=128),
    "electra-mini": _electra(4, 256, d_embedding=128),
    "electra-mini-generator": _generator(4, 64, d_embedding=128),
    "electra-small": _electra(12, 256, d_embedding=128),
    "electra-small-generator": _generator(12, 256, d_embedding=128),
    "electra-base": _electra(12, 768),
    "electra-base-generator": _generator(12, 256, d_embedding=768),
    "electra-large": _electra(24, 1024),
    "electra-large-generator": _generator(24, 256, d_embedding=1024),
    "modernbert-tiny": _modernbert(2, 128, 192, released=False),
    "modernbert-mini": _modernbert(4, 256, 384, released=False),
    "modernbert-midi": _modernbert(6, 512, 768, released=False),
    "modernbert-base": _modernbert(22, 768, 1152),
    "modernbert-large": _modernbert(28, 1024, 2624),
}
