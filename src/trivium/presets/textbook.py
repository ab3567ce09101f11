"""Models as textbooks describe them, where these descriptions differ from the papers."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal, Xavier
from trivium.models.stack import Embedding, Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import LayerNorm, UnbiasedLayerNorm
from trivium.nn.positions.sinusoidal import Sinusoidal
from trivium.presets.preset import Preset, decoder

_TRANSFORMER = "after Vaswani et al. 2017 (Transformer, as a textbook lists it"


def _textbook_transformer(*, pre_norm: bool = False) -> Preset:
    """Return a preset of the Transformer in a textbook's PyTorch listings.

    Unlike the model of the paper, it has one vocabulary per language, biases in attention, an
    untied output projection with a bias, LayerNorm with unbiased standard deviation, a final norm
    after each stack, and dropout of the hidden units of feed-forward networks. Its token embeddings
    are initialized from a uniform distribution, like its matrices. If `pre_norm` is True, the
    layers are those of another textbook: pre-norm blocks with standard LayerNorm and without
    dropout of hidden units.
    """
    d_model = 512
    stack = Stack.from_mixers(
        num_layers=6,
        mixer=Attention(num_heads=8, head_dim=64),
        feed_forward=MLP(d_ff=4 * d_model, activation="relu", dropout=0.0 if pre_norm else 0.1),
        norm=LayerNorm() if pre_norm else UnbiasedLayerNorm(),
        norm_placement="pre" if pre_norm else "post",
        final_norm=True,
        dropout=0.1,
    )
    model = TransformerSpec(
        vocab_size=37_000,
        source_vocab_size=37_000,
        d_model=d_model,
        embedding=Embedding(positions=Sinusoidal(), scale=d_model**0.5),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=False, bias=True),),
        initialization=Xavier(tables="uniform"),
    )
    return Preset(model, f"{_TRANSFORMER}{', pre-norm' if pre_norm else ''})", None)


def _textbook_gpt3() -> Preset:
    """Return a preset of GPT-3 as a textbook describes it.

    Unlike the model of the paper, it has post-norm blocks, sinusoidal position embeddings and ReLU.
    Attention is dense in all layers and has no biases.
    """
    model = decoder(
        96,
        12_288,
        vocab_size=50_257,
        embedding=Embedding(positions=Sinusoidal(max_length=2048)),
        mixer=Attention(num_heads=96, head_dim=128, bias=False),
        feed_forward=MLP(d_ff=49_152, activation="relu"),
        norm_placement="post",
        initialization=Normal(),
    )
    paper = "after Brown et al. 2020 (GPT-3, as a textbook composes it)"
    published = {"tokens": 300e9, "text_bytes": 570e9}
    return Preset(model, paper, 2048, **published)


PRESETS: dict[str, Preset] = {
    "textbook-transformer-base": _textbook_transformer(),
    "textbook-transformer-base-pre-norm": _textbook_transformer(pre_norm=True),
    "gpt3-175b-textbook": _textbook_gpt3(),
}
